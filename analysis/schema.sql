-- Tables that `campaign load` fills from a results folder. Times: CLOCK_MONOTONIC ns of the machine. NULL: not measured.

CREATE TABLE campaign (name VARCHAR, configuration JSON);

CREATE TABLE sittings (sitting_id VARCHAR PRIMARY KEY, provenance JSON);

-- one row an attempt, as found on disk; the table `runs` adds what counts
CREATE TABLE attempts (
    folder VARCHAR PRIMARY KEY, kind VARCHAR, run_id VARCHAR, campaign VARCHAR,
    model VARCHAR, arm VARCHAR, profile VARCHAR, repetition INTEGER,
    block_id VARCHAR, pass_number INTEGER, attempt INTEGER, order_in_block INTEGER, block_arms VARCHAR[], seed BIGINT,
    sitting_id VARCHAR, machine_id VARCHAR, cache_id VARCHAR,
    gpu_index INTEGER, gpu_uuid VARCHAR, gpu_name VARCHAR, gpu_memory_total_mib BIGINT,
    engine_kind VARCHAR, engine_version VARCHAR, simulated BOOLEAN, weights VARCHAR, instruments BOOLEAN, wall_start VARCHAR,
    status VARCHAR, failure_class VARCHAR, failure_message VARCHAR,
    run_begin_ns BIGINT, exec_ns BIGINT, healthy_ns BIGINT, probe_sent_ns BIGINT, probe_first_token_ns BIGINT,
    probe_end_ns BIGINT, bench_ready_ns BIGINT, go_ns BIGINT, window_begin_ns BIGINT, window_end_ns BIGINT,
    bench_exit_ns BIGINT, stop_ns BIGINT, exited_ns BIGINT, memory_freed_ns BIGINT, run_end_ns BIGINT,
    num_prompts INTEGER, concurrency INTEGER, input_tokens INTEGER, output_tokens INTEGER, range_ratio DOUBLE,
    warmup_requests INTEGER, probe_output_tokens INTEGER,
    num_gpu_blocks BIGINT, num_gpu_blocks_natural BIGINT, kv_block_tokens BIGINT, -- the last: tokens a block, of /metrics
    idle_gpu_memory_mib BIGINT, telemetry_absent_reason VARCHAR, cpu_busy_pct DOUBLE, cpu_stolen_pct DOUBLE,
    -- facts of the server log
    vllm_version VARCHAR, architecture VARCHAR, max_model_len BIGINT, max_num_batched_tokens BIGINT,
    enforce_eager BOOLEAN, cudagraph_mode VARCHAR, compile_mode VARCHAR, capture_sizes INTEGER[], attention_backend VARCHAR,
    weights_load_s DOUBLE, model_load_s DOUBLE, model_load_gib DOUBLE,
    compile_cache VARCHAR, dynamo_s DOUBLE, inductor_s DOUBLE, torch_compile_s DOUBLE, profiling_s DOUBLE,
    estimated_graph_gib DOUBLE, available_kv_gib DOUBLE, kv_tokens BIGINT, max_concurrency DOUBLE,
    capture_s DOUBLE, capture_gib DOUBLE, graph_pool_actual_gib DOUBLE,
    graphs_captured_piecewise INTEGER, graphs_captured_full INTEGER,
    engine_init_s DOUBLE, engine_init_compile_s DOUBLE, last_line VARCHAR,
    -- scalars of the bench client
    bench_completed INTEGER, bench_failed INTEGER, bench_duration_s DOUBLE,
    bench_input_tokens BIGINT, bench_output_tokens BIGINT, bench_output_tok_s DOUBLE,
    bench_mean_ttft_ms DOUBLE, bench_mean_tpot_ms DOUBLE, bench_mean_itl_ms DOUBLE
);

-- the same runs without this project: tools/gpu-host/plain_loop.py, its files in loops/
CREATE TABLE loop_runs (
    loop VARCHAR, way VARCHAR, simulated BOOLEAN, machine_id VARCHAR, gpu_uuid VARCHAR, model VARCHAR, arm VARCHAR, profile VARCHAR, repetition INTEGER,
    begin_ns BIGINT, ready_ns BIGINT, client_begin_ns BIGINT, client_end_ns BIGINT, end_ns BIGINT,
    bench_completed INTEGER, bench_failed INTEGER, bench_duration_s DOUBLE, bench_output_tok_s DOUBLE
);

-- finished-looking folders that could not be read
CREATE TABLE unreadable (folder VARCHAR, problem VARCHAR);

CREATE TABLE reasons (folder VARCHAR, code VARCHAR, severity VARCHAR, evidence VARCHAR, advice VARCHAR);

CREATE TABLE requests (
    folder VARCHAR, request INTEGER, start_s DOUBLE, ttft_s DOUBLE, latency_s DOUBLE,
    input_tokens INTEGER, output_tokens INTEGER, itl_us INTEGER[], error VARCHAR
);

CREATE TABLE steps (
    folder VARCHAR, step INTEGER, t_ns BIGINT, running INTEGER, waiting INTEGER, kv_usage DOUBLE, preempted INTEGER,
    prompt_tokens INTEGER, generated_tokens INTEGER, unpadded_tokens INTEGER, padded_tokens INTEGER, runtime_mode VARCHAR
);

CREATE TABLE telemetry (
    folder VARCHAR, t_ns BIGINT, energy_mj BIGINT, power_mw INTEGER, sm_clock_mhz INTEGER, memory_clock_mhz INTEGER,
    temperature_c INTEGER, memory_used_mib INTEGER, gpu_utilisation_pct INTEGER, throttle_reasons BIGINT
);

-- the engine's /metrics before the go and after the client ended; labels as a=x,b=y
CREATE TABLE metrics (folder VARCHAR, moment VARCHAR, name VARCHAR, labels VARCHAR, value DOUBLE);

-- Student's t, 97.5% quantile, for the 95% intervals
CREATE TABLE student_t (df BIGINT PRIMARY KEY, t975 DOUBLE);
