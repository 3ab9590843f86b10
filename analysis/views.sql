-- What the tables of the report share. `run_telemetry`: the view telemetry_facts of each judged run by itself. Run once after the load; all of it can be queried in the stock duckdb shell.

-- A figure with its 95% interval: {mean, lo, hi, n}. lo and hi are NULL for n = 1. fN keeps N decimals.
-- (A macro's argument is planned once for each place in which it stands; `it`, the one of a list, only once.)
CREATE MACRO f0(e) AS list_transform([e], lambda it: struct_pack(mean := it.mean::DECIMAL(18,0), lo := it.lo::DECIMAL(18,0), hi := it.hi::DECIMAL(18,0), n := it.n))[1];
CREATE MACRO f1(e) AS list_transform([e], lambda it: struct_pack(mean := it.mean::DECIMAL(18,1), lo := it.lo::DECIMAL(18,1), hi := it.hi::DECIMAL(18,1), n := it.n))[1];
CREATE MACRO f2(e) AS list_transform([e], lambda it: struct_pack(mean := it.mean::DECIMAL(18,2), lo := it.lo::DECIMAL(18,2), hi := it.hi::DECIMAL(18,2), n := it.n))[1];
CREATE MACRO f3(e) AS list_transform([e], lambda it: struct_pack(mean := it.mean::DECIMAL(18,3), lo := it.lo::DECIMAL(18,3), hi := it.hi::DECIMAL(18,3), n := it.n))[1];
CREATE MACRO d0(x) AS x::DECIMAL(18,0);
CREATE MACRO d1(x) AS x::DECIMAL(18,1);
CREATE MACRO d2(x) AS x::DECIMAL(18,2);
CREATE MACRO d3(x) AS x::DECIMAL(18,3);
-- one value, or 'least to greatest' where runs differ
CREATE MACRO span_text(least, greatest) AS CASE WHEN least = greatest THEN least::VARCHAR ELSE least || ' to ' || greatest END;
-- tokens of a KV block as the scheduling model takes them: where /metrics did not tell, vLLM's 16 is assumed
CREATE MACRO block_tokens(told) AS coalesce(told, 16);
CREATE MACRO seconds(from_ns, to_ns) AS (to_ns - from_ns) / 1e9;

-- provenance flattened: one row a value, key with dots; NULL: not reported
CREATE TABLE sitting_facts AS
SELECT sitting_id, replace(fullkey[3:], '"', '') AS key, atom ->> '$' AS value
FROM sittings, json_tree(provenance) AS leaf WHERE leaf.type NOT IN ('OBJECT', 'ARRAY') ORDER BY ALL;

-- Which attempts count: those of every complete pass, that is one with a valid run of each of its arms; of each arm in it
-- the last valid attempt. `set_aside` says why the others do not. `pair_id`: what is paired, one pass of one block.
-- `setup`: only runs of one setup are pooled or compared. It names the card and the weights and, where sittings of those
-- differ in facts that must agree (must_agree in provenance.json), these facts.
CREATE TABLE runs AS
WITH needed AS (
    SELECT block_id, pass_number, list_sort(list_distinct(flatten(list(block_arms)) || list(arm))) AS arms
    FROM attempts WHERE kind = 'run' GROUP BY ALL
), chosen AS (
    SELECT block_id, pass_number, arm, max(attempt) AS attempt, arg_max(folder, attempt) AS folder
    FROM attempts WHERE kind = 'run' AND status = 'valid' GROUP BY ALL
), passes AS (
    SELECT block_id, pass_number, list_filter(arms, lambda x: NOT list_contains(list(arm), x)) AS missing
    FROM needed LEFT JOIN chosen USING (block_id, pass_number) GROUP BY block_id, pass_number, arms
), codes AS (
    SELECT folder, string_agg(code, ', ' ORDER BY code) AS codes FROM reasons WHERE severity = 'invalid' GROUP BY folder
), judged AS (
    SELECT a.folder,
        CASE
            WHEN a.status = 'failed' THEN 'failed: ' || coalesce(a.failure_class, 'no class')
            WHEN a.status = 'invalid' THEN 'invalid: ' || coalesce(codes, 'no reason recorded')
            WHEN a.kind = 'prime' THEN NULL
            WHEN missing <> [] THEN 'pass incomplete: no valid run of ' || array_to_string(missing, ', ')
            WHEN chosen.folder <> a.folder THEN 'superseded: attempt ' || chosen.attempt || ' counts'
        END AS set_aside
    FROM attempts a
    LEFT JOIN passes USING (block_id, pass_number)
    LEFT JOIN chosen ON (chosen.block_id, chosen.pass_number, chosen.arm) = (a.block_id, a.pass_number, a.arm)
    LEFT JOIN codes ON codes.folder = a.folder
), cards AS (
    SELECT a.folder, sitting_id, CASE WHEN simulated THEN 'SIMULATED, ' ELSE '' END || coalesce(gpu_name, 'no GPU') || ', '
           || CASE weights WHEN 'dummy' THEN 'random weights' ELSE 'trained weights' END
           || CASE WHEN source = 'integrated' THEN ', energy from power samples' ELSE '' END AS card
    FROM attempts a LEFT JOIN run_telemetry USING (folder)
), agreed AS (
    SELECT card, sitting_id, key AS fact, coalesce(f.value, 'not reported') AS value
    FROM (SELECT DISTINCT card, sitting_id FROM cards)
    CROSS JOIN (SELECT DISTINCT key[12:] AS key FROM sitting_facts WHERE starts_with(key, 'must_agree.'))
    LEFT JOIN sitting_facts f USING (sitting_id, key)
), differing AS (
    SELECT card, sitting_id, string_agg(fact || ' ' || left(value, 40), ', ' ORDER BY fact) AS facts
    FROM agreed SEMI JOIN (SELECT card, fact FROM agreed GROUP BY card, fact HAVING count(DISTINCT value) > 1) USING (card, fact)
    GROUP BY card, sitting_id
)
SELECT a.*, block_id || '.p' || pass_number AS pair_id, set_aside IS NULL AS counted, set_aside, card || coalesce(' (' || facts || ')', '') AS setup
FROM attempts a JOIN judged USING (folder) JOIN cards USING (folder, sitting_id) LEFT JOIN differing USING (card, sitting_id) ORDER BY folder;

-- Start of every counted run and prime, in seconds. torch.compile comes from the engine's log.
-- An arm without graphs or without compiler (captures, compiles: false) spent 0 s on them; a missing line is NULL.
-- engine init (as logged) holds compile, profiling, capture; loading the weights comes before it; the rest is imports, processes, API server.
CREATE VIEW starts AS
SELECT folder, kind, setup, model, arm, sitting_id, compile_cache,
       compile_cache IN ('cold', 'partial', 'invalid') IS NOT TRUE AS warm,
       seconds(exec_ns, healthy_ns) AS start_s, seconds(exec_ns, probe_first_token_ns) AS first_token_s,
       model_load_s AS load_s, engine_init_s, compile_mode IS DISTINCT FROM 'NONE' AS compiles, cudagraph_mode IS DISTINCT FROM 'NONE' AS captures,
       CASE WHEN compiles THEN torch_compile_s ELSE 0 END AS compile_s,
       CASE WHEN captures THEN capture_s_logged ELSE 0 END AS capture_s,
       engine_init_s - compile_s - capture_s AS init_rest_s,
       start_s - engine_init_s - model_load_s AS outside_s
FROM (SELECT * RENAME (capture_s AS capture_s_logged) FROM runs) WHERE counted;

-- Requests of counted runs. TPOT: (latency - ttft) / (output tokens - 1).
CREATE VIEW request_times AS
SELECT folder, request, ttft_s * 1e3 AS ttft_ms, latency_s * 1e3 AS latency_ms,
       CASE WHEN q.output_tokens > 1 THEN (latency_s - ttft_s) * 1e3 / (q.output_tokens - 1) END AS tpot_ms
FROM requests q JOIN runs USING (folder) WHERE counted AND error = '' AND q.output_tokens > 0;

-- Engine steps of the load: from the first measured request until the client ended (nothing else asks for tokens by then).
CREATE VIEW window_steps AS
SELECT s.*, setup, model, profile, arm FROM steps s JOIN runs r USING (folder)
WHERE counted AND kind = 'run' AND t_ns >= window_begin_ns AND t_ns <= coalesce(bench_exit_ns, window_end_ns);

-- Time of the steps that only decode, since the step before, in ms; `decoding`: requests that got a token in it. A step with more tokens
-- than that also reads a prompt: a chunk of one, or a preempted request's anew (prompt_tokens counts at a request's first token only).
-- The last before a step that reads a prompt is left out: its results come when that one begins, up to 60 ms late, or after a pause with the step before.
CREATE VIEW decode_steps AS
SELECT folder, setup, model, profile, arm, step, t_ns, generated_tokens AS decoding, ms
FROM (SELECT *, (t_ns - lag(t_ns) OVER steps) / 1e6 AS ms, prompt_tokens = 0 AND generated_tokens > 0 AND coalesce(unpadded_tokens, generated_tokens) <= generated_tokens AS decodes, lead(decodes) OVER steps AS next_decodes
      FROM window_steps WINDOW steps AS (PARTITION BY folder ORDER BY step))
WHERE ms IS NOT NULL AND decodes AND next_decodes;

-- Means of five such steps one right after the other at the same number of decoding requests. A step's moment is when the engine's results
-- reach the API server, which takes some late and the next ones in a bunch: single steps look longer and shorter than they were, five do not.
CREATE TABLE decode_fives AS
SELECT folder, setup, model, profile, arm, f.* EXCLUDE (folder) FROM runs JOIN (
    SELECT folder, decoding, min(step) AS first_step, min(t_ns) AS t_ns, avg(ms) AS ms
    FROM (SELECT *, (row_number() OVER (PARTITION BY folder, decoding, spell ORDER BY step) - 1) // 5 AS five
          FROM (SELECT folder, decoding, step, t_ns, ms, step - row_number() OVER (PARTITION BY folder, decoding ORDER BY step) AS spell FROM decode_steps))
    GROUP BY folder, decoding, spell, five HAVING count(*) = 5
) f USING (folder) ORDER BY folder, first_step;

-- Quantiles of these means over all runs of a cell and arm, by decoding requests; of fewer than 20 none.
CREATE VIEW usual_steps AS
SELECT setup, model, profile, arm, decoding, quantile_cont(ms, [0.05, 0.1, 0.5]) AS q FROM decode_fives GROUP BY ALL HAVING count(*) >= 20;

-- The fives of runs on a GPU; pace: over the 10th percentile of their like; slow: 1.2 times that and more.
CREATE VIEW paced_fives AS
SELECT folder, setup, model, profile, arm, machine_id, graphless, t_ns, ms, ms / q[2] AS pace, pace > 1.2 AS is_slow, ms <= 1.02 * q[2] AS in_limit
FROM decode_fives JOIN usual_steps USING (setup, model, profile, arm, decoding)
JOIN (SELECT folder, machine_id, cudagraph_mode = 'NONE' AS graphless FROM runs WHERE gpu_uuid IS NOT NULL) USING (folder);

-- Runs of a cell and arm, those slow in over 80% of the time of their fives, and those within the limit of their like in a tenth of it or more.
CREATE VIEW slow_throughout AS
SELECT setup, model, profile, arm, count(*) AS runs, count(*) FILTER (slow > 0.8) AS slow, count(*) FILTER (in_limit >= 0.1) AS in_limit
FROM (SELECT setup, model, profile, arm, folder, sum(ms) FILTER (is_slow) / sum(ms) AS slow, sum(ms) FILTER (in_limit) / sum(ms) AS in_limit FROM paced_fives GROUP BY ALL) GROUP BY ALL;

-- Seconds of a run by which its fives went over a limit: 1.02 times the 10th percentile, and by a stricter and a laxer rule. Nothing of a
-- run whose fives with limits make up less than a quarter of its window: the little that they tell is not the run's pace.
CREATE VIEW stalls AS
SELECT folder, 5 * sum(ms) / 1e3 / any_value(bench_duration_s) AS judged_share, 5 * sum(greatest(0, ms - 1.02 * q[2])) / 1e3 AS stalled_s, 5 * sum(greatest(0, ms - q[1])) / 1e3 AS stricter_s, 5 * sum(greatest(0, ms - 1.1 * q[3])) / 1e3 AS laxer_s
FROM decode_fives JOIN usual_steps USING (setup, model, profile, arm, decoding) JOIN (SELECT folder, bench_duration_s FROM runs) USING (folder) GROUP BY folder HAVING judged_share >= 0.25;

-- Waiting span: the steps with a token count from the first step with a waiting request to the last token.
CREATE VIEW waiting_steps AS
SELECT w.* FROM window_steps w
JOIN (SELECT folder, min(step) AS first_step FROM window_steps WHERE waiting > 0 GROUP BY folder) USING (folder)
WHERE step >= first_step AND unpadded_tokens IS NOT NULL;

CREATE VIEW waiting_spans AS
SELECT folder, count(*) AS steps, avg(running) AS mean_running, coalesce(sum(preempted), 0) AS preempted,
       (sum(padded_tokens - unpadded_tokens) FILTER (runtime_mode = 'FULL')) / (sum(padded_tokens) FILTER (runtime_mode = 'FULL')) AS padded_share_full
FROM waiting_steps GROUP BY folder;

-- Counters of a run: after minus before.
CREATE VIEW counters AS
SELECT folder, name, sum(value) FILTER (moment = 'after') - sum(value) FILTER (moment = 'before') AS value
FROM metrics GROUP BY folder, name;

-- Clocks in the window, and energy as far as it is to be believed: NULL, and why in `absent`, where a gate energy_* fired.
CREATE VIEW energy AS
SELECT folder, source, absent, sm_clock_mhz, power_capped_pct, slowed_pct, CASE WHEN absent IS NULL THEN COLUMNS('^(start|ready|window|tail|total|window_error|window_integrated)_j$') END AS "\0"
FROM run_telemetry
LEFT JOIN (SELECT folder, string_agg(code, ', ' ORDER BY code) AS absent FROM reasons WHERE starts_with(code, 'energy_') GROUP BY folder) USING (folder);

-- What the head of the report says. study_budget_gib: the memory budget where it is that of the study's card, an 80 GB H100 at vLLM's default: KV pools then equal the study's by choice.
CREATE VIEW summary AS
SELECT (SELECT any_value(name) FROM campaign) AS campaign, count(*) FILTER (kind = 'run') AS attempts,
       count(*) FILTER (kind = 'run' AND counted) AS counted, count(*) FILTER (kind = 'run' AND NOT counted) AS set_aside,
       count(*) FILTER (kind = 'prime') AS primes, (SELECT count(*) FROM unreadable) AS unreadable,
       coalesce(bool_or(simulated), false) AS simulated, coalesce(bool_or(weights = 'dummy'), false) AS random_weights,
       coalesce(list(DISTINCT setup ORDER BY setup) FILTER (status <> 'failed'), []) AS setups,
       coalesce(list(DISTINCT coalesce(vllm_version, engine_version) ORDER BY coalesce(vllm_version, engine_version)) FILTER (coalesce(vllm_version, engine_version) IS NOT NULL), []) AS versions,
       (SELECT string_agg(pct || ' of a ' || model || ' ' || profile || ' window', ', ' ORDER BY model, profile DESC) FROM (
           SELECT model, profile, span_text(min(d0(power_capped_pct)), max(d0(power_capped_pct))) || '%' AS pct FROM energy JOIN runs USING (folder) WHERE counted AND runs.kind = 'run' AND power_capped_pct IS NOT NULL GROUP BY ALL)) AS power_capped,
       (SELECT any_value(gib) FROM (SELECT TRY_CAST(configuration ->> '$.engine.memory_budget_gib' AS DOUBLE) AS gib FROM campaign) WHERE gib BETWEEN 72 AND 73.5) AS study_budget_gib
FROM runs;

-- Warnings of the counted runs of a cell and arm, as text; one that names its size in per cent (step_time_drift) with the largest of a run; `campaign validate` has the words.
CREATE VIEW cell_warnings AS
SELECT setup, model, profile, arm, string_agg(code || ' (' || n || ' of ' || runs || coalesce(', up to ' || most || '%', '') || ')', ', ' ORDER BY code) AS warnings
FROM (SELECT setup, model, profile, arm, code, count(DISTINCT folder) AS n, max(TRY_CAST(regexp_extract(evidence, '\(\+(\d+)%\)$', 1) AS INTEGER)) AS most FROM reasons JOIN runs USING (folder) WHERE severity = 'warning' AND counted AND kind = 'run' GROUP BY ALL)
JOIN (SELECT setup, model, profile, arm, count(*) AS runs FROM runs WHERE counted AND kind = 'run' GROUP BY ALL) USING (setup, model, profile, arm) GROUP BY ALL;

-- Warm starts of counted runs that should be alike, as text: one arm, whatever the load and the KV pool.
CREATE VIEW like_starts AS
SELECT setup, model, regexp_replace(arm, '_kv_matched|_bare', '') AS arm, span_text(min(d1(start_s)), max(d1(start_s))) || ' s (n = ' || count(*) || ')' AS starts, count(*) AS n
FROM starts WHERE kind = 'run' AND warm AND start_s IS NOT NULL GROUP BY ALL;

-- Where a run's time goes, in seconds; own_s is the orchestrator's: all but start, probe, warm-up and window.
CREATE VIEW own_times AS
SELECT folder, seconds(run_begin_ns, exec_ns) AS before_exec_s, seconds(exec_ns, healthy_ns) AS start_s,
       seconds(healthy_ns, probe_sent_ns) AS to_probe_s, seconds(probe_sent_ns, probe_end_ns) AS probe_s,
       seconds(probe_end_ns, go_ns) AS to_go_s, seconds(go_ns, window_begin_ns) AS warmup_s, seconds(window_begin_ns, window_end_ns) AS window_s,
       seconds(window_end_ns, bench_exit_ns) AS client_end_s, seconds(bench_exit_ns, stop_ns) AS to_stop_s,
       seconds(stop_ns, coalesce(memory_freed_ns, exited_ns)) AS stop_s, seconds(coalesce(memory_freed_ns, exited_ns), run_end_ns) AS files_s,
       seconds(run_begin_ns, run_end_ns) AS total_s, total_s - start_s - probe_s - warmup_s - window_s AS own_s
FROM runs WHERE counted AND kind = 'run';

-- What kept a GPU of a machine at work, and when: attempts, and the runs of the plain loop and the sweep, which tell less. One cut off lasts to its last known moment.
CREATE VIEW at_work AS
SELECT folder AS name, machine_id, gpu_uuid, run_begin_ns AS t0, coalesce(run_end_ns, greatest(run_begin_ns, exec_ns, healthy_ns, window_end_ns, stop_ns, exited_ns, memory_freed_ns)) AS t1,
       exec_ns, coalesce(healthy_ns, exited_ns) AS started_ns, window_begin_ns AS w0, window_end_ns AS w1, cudagraph_mode = 'NONE' AS graphless
FROM attempts
UNION ALL
SELECT concat_ws(' ', loop, concat_ws('.', model, arm, profile, 'r' || repetition)), machine_id, gpu_uuid, begin_ns, end_ns, if(ready_ns IS NULL, NULL, begin_ns), ready_ns, NULL, NULL, NULL
FROM loop_runs;

-- What else was at work beside an attempt on its machine, on another GPU.
-- shared_s: of the whole run; window_s: of its load window, in which a moment with several neighbours counts once, for the first of them.
CREATE VIEW neighbours AS
WITH pairs AS (
    SELECT folder, b.name AS neighbour, greatest(a.t0, b.t0) AS from_ns, least(a.t1, b.t1) AS to_ns, a.w0, a.w1,
           coalesce(max(b.t1) OVER (PARTITION BY folder ORDER BY b.t0, b.name ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), b.t0) AS seen_to_ns
    FROM attempts JOIN at_work a ON a.name = folder JOIN at_work b ON a.machine_id = b.machine_id AND a.gpu_uuid <> b.gpu_uuid AND a.t0 < b.t1 AND b.t0 < a.t1
)
SELECT folder, neighbour, from_ns, seconds(from_ns, to_ns) AS shared_s,
       CASE WHEN w0 IS NOT NULL AND w1 IS NOT NULL THEN greatest(0, seconds(greatest(from_ns, seen_to_ns, w0), least(to_ns, w1))) END AS window_s
FROM pairs;

-- Share of a counted run's load window in which another GPU of the host was at work.
CREATE VIEW window_shares AS
SELECT folder, setup, model, profile, arm, pair_id, coalesce(sum(window_s), 0) / nullif(seconds(any_value(window_begin_ns), any_value(window_end_ns)), 0) AS share
FROM runs LEFT JOIN neighbours USING (folder) WHERE counted AND kind = 'run' GROUP BY folder, setup, model, profile, arm, pair_id;

-- One row a counted run, one column a figure.
CREATE TABLE run_figures AS
WITH request_figures AS (
    SELECT folder, avg(tpot_ms) AS tpot_ms, quantile_cont(tpot_ms, 0.5) AS tpot_p50_ms, quantile_cont(tpot_ms, 0.9) AS tpot_p90_ms, quantile_cont(tpot_ms, 0.99) AS tpot_p99_ms,
           avg(ttft_ms) AS ttft_ms, quantile_cont(ttft_ms, 0.5) AS ttft_p50_ms, quantile_cont(ttft_ms, 0.9) AS ttft_p90_ms, quantile_cont(ttft_ms, 0.99) AS ttft_p99_ms,
           avg(latency_ms) AS latency_ms
    FROM request_times GROUP BY folder
)
SELECT r.folder, r.bench_output_tok_s AS output_tok_s, r.bench_duration_s AS duration_s, q.* EXCLUDE (folder),
       w.steps, w.mean_running, w.preempted, w.padded_share_full, p.value AS preemptions,
       r.num_gpu_blocks AS kv_blocks, r.kv_tokens, r.max_concurrency, r.concurrency / r.max_concurrency AS overload,
       e.* EXCLUDE (folder, source, absent), bench_output_tokens / nullif(window_j, 0) AS tok_per_j, window_j / o.window_s AS mean_power_w,
       o.own_s, t.judged_share, t.stalled_s / r.bench_duration_s AS stalled_share, r.bench_output_tokens / (r.bench_duration_s - t.stalled_s) AS capped_tok_s,
       r.bench_output_tokens / (r.bench_duration_s - t.stricter_s) AS capped_stricter_tok_s, r.bench_output_tokens / (r.bench_duration_s - t.laxer_s) AS capped_laxer_tok_s,
       s.start_s, s.first_token_s, s.engine_init_s, s.load_s, s.compile_s, s.capture_s, s.init_rest_s, s.outside_s
FROM runs r
LEFT JOIN request_figures q USING (folder)
LEFT JOIN waiting_spans w USING (folder)
LEFT JOIN stalls t USING (folder)
LEFT JOIN counters p ON p.folder = r.folder AND p.name = 'vllm:num_preemptions_total'
LEFT JOIN energy e ON e.folder = r.folder
LEFT JOIN own_times o ON o.folder = r.folder
LEFT JOIN starts s ON s.folder = r.folder AND s.warm
WHERE r.counted AND r.kind = 'run' ORDER BY r.folder;

-- The same in long form, without what was not measured. A start does not depend on the load: its figures also stand under the profile '(all)'.
CREATE TABLE run_values AS
WITH long AS (
    SELECT setup, model, profile, arm, pair_id, repetition, pass_number, metric, value
    FROM (UNPIVOT (SELECT folder, COLUMNS(* EXCLUDE folder)::DOUBLE FROM run_figures) ON COLUMNS(* EXCLUDE folder) INTO NAME metric VALUE value)
    JOIN runs USING (folder)
)
FROM long UNION ALL BY NAME SELECT * REPLACE ('(all)' AS profile) FROM long
WHERE metric IN ('start_s', 'first_token_s', 'engine_init_s', 'load_s', 'compile_s', 'capture_s', 'init_rest_s', 'outside_s', 'kv_blocks', 'kv_tokens', 'max_concurrency');

-- Mean and 95% interval (Student's t) of a group's values; no interval for one; NULL for none. none_of: of k runs that have no such thing, which is shown as 'none'.
CREATE MACRO mean95(x) AS list_transform([struct_pack(n := count(x), mean := avg(x), half := (SELECT list(t975 ORDER BY df) FROM student_t)[count(x) - 1] * stddev_samp(x) / sqrt(count(x)))],
    lambda it: CASE WHEN it.n > 0 THEN struct_pack(mean := it.mean, lo := it.mean - it.half, hi := it.mean + it.half, n := it.n) END)[1];
CREATE MACRO none_of(k) AS struct_pack(mean := NULL::DOUBLE, lo := NULL::DOUBLE, hi := NULL::DOUBLE, n := k);

-- Mean and interval of logarithms as a ratio.
CREATE MACRO exp_of(l) AS struct_pack(mean := exp(l.mean), lo := exp(l.lo), hi := exp(l.hi), n := l.n);

-- Two-sided exact p of a zero mean: the share of sign patterns whose sum is at least as far from 0. NULL above 12 values: the patterns are 2^n.
-- With n pairs it cannot fall below 2 / 2^n: 0.0625 for five.
CREATE MACRO sign_flips(d) AS list_reduce(list_transform(d, lambda x: [x]), lambda sums, x:
    list_concat(list_transform(sums, lambda s: s + x[1]), list_transform(sums, lambda s: s - x[1])));
CREATE MACRO sign_flip_p(d) AS CASE WHEN len(d) BETWEEN 1 AND 12 THEN
    list_avg(list_transform(sign_flips(d[:12]), lambda s: (abs(s) >= abs(list_sum(d)) * (1 - 1e-12))::INTEGER)) END;

-- Mean over runs, and every point in order of repetition.
CREATE TABLE estimates AS
SELECT setup, model, profile, arm, metric, mean95(value) AS estimate, list(value ORDER BY repetition, pass_number, pair_id) AS points
FROM run_values GROUP BY ALL;

-- arm_a over arm_b over the n passes of blocks that have both: ratio on the log scale, difference, one ratio a pass in `points`.
-- Ratio, p and points are NULL where a figure is not positive; not resolved: the interval holds 1, or there are
-- fewer than three passes.
CREATE TABLE effects AS
WITH pairs AS (
    SELECT setup, metric, model, profile, a.arm AS arm_a, b.arm AS arm_b, pair_id, a.repetition, a.pass_number, a.value - b.value AS difference,
           CASE WHEN a.value > 0 AND b.value > 0 THEN ln(a.value / b.value) END AS log_ratio
    FROM run_values a JOIN run_values b USING (setup, metric, model, profile, pair_id) WHERE a.arm <> b.arm
), figures AS (
    SELECT setup, metric, model, profile, arm_a, arm_b, count(*) AS n, mean95(difference) AS difference,
           CASE WHEN count(log_ratio) = count(*) THEN mean95(log_ratio) END AS l,
           CASE WHEN count(log_ratio) = count(*) THEN list(log_ratio ORDER BY repetition, pass_number, pair_id) END AS logs
    FROM pairs GROUP BY ALL
)
SELECT setup, metric, model, profile, arm_a, arm_b, n, struct_pack(mean := exp(l.mean), lo := exp(l.lo), hi := exp(l.hi), n := n) AS ratio,
       CASE WHEN l IS NOT NULL THEN CASE WHEN n < 3 THEN 'not resolved' WHEN l.lo > 0 THEN 'higher' WHEN l.hi < 0 THEN 'lower' ELSE 'not resolved' END END AS verdict,
       sign_flip_p(logs) AS p, list_transform(logs, lambda x: exp(x)) AS points, difference
FROM figures ORDER BY ALL;

-- Every arm against eager. Eager's own row has n = 0 in both figures, which the report prints as 'reference'.
CREATE VIEW against_eager AS
SELECT setup, metric, model, profile, arm_a AS arm, ratio, difference, verdict, p, points FROM effects WHERE arm_b = 'eager'
UNION ALL
SELECT setup, metric, model, profile, 'eager', e, e, 'reference', NULL, NULL
FROM estimates, (SELECT struct_pack(mean := NULL::DOUBLE, lo := NULL::DOUBLE, hi := NULL::DOUBLE, n := 0::BIGINT) AS e) WHERE arm = 'eager';
