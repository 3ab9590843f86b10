-- title: Where this campaign differs from the study
-- note: Here: from the database (runs, provenance, configuration). Not stated: the study does not say; vLLM's default is named where it decides.
WITH c AS (SELECT any_value(configuration) AS j FROM campaign),
fact AS (SELECT key, string_agg(DISTINCT value, ', ' ORDER BY value) AS value FROM sitting_facts GROUP BY key),
r AS (
    SELECT string_agg(DISTINCT gpu_name, ', ' ORDER BY gpu_name) AS cards, string_agg(DISTINCT coalesce(vllm_version, engine_version), ', ' ORDER BY coalesce(vllm_version, engine_version)) AS versions,
           string_agg(DISTINCT CASE weights WHEN 'dummy' THEN 'random weights' ELSE 'trained weights' END, ', ') AS weights, string_agg(DISTINCT max_model_len::VARCHAR, ', ') AS context,
           min(order_in_block) < max(order_in_block) AS ordered, any_value(warmup_requests) AS warmups, count(DISTINCT seed) AS seeds, bool_or(num_gpu_blocks IS NOT NULL) AS has_blocks,
           bool_or(simulated) AS simulated
    FROM runs WHERE counted AND kind = 'run'
), blocks AS (SELECT min(n) AS fewest, max(n) AS most FROM (SELECT count(DISTINCT pair_id) AS n FROM runs WHERE counted AND kind = 'run' GROUP BY setup, model, profile, arm)),
traced AS (SELECT count(DISTINCT folder) AS n FROM window_steps), metered AS (SELECT count(*) AS n FROM run_figures WHERE window_j IS NOT NULL),
study AS (SELECT arm, text FROM published WHERE metric = 'setup'),
apart AS (SELECT string_agg(profile, ', ' ORDER BY profile) AS profiles FROM (SELECT profile FROM (SELECT profile, model, count(DISTINCT model) OVER (PARTITION BY profile, gpu_uuid) AS models FROM runs WHERE counted AND kind = 'run' AND gpu_uuid IS NOT NULL)
          GROUP BY profile HAVING max(models) = 1 AND count(DISTINCT model) > 1)),
beside AS (SELECT count(*) AS total, count(*) FILTER (folder IN (SELECT folder FROM neighbours)) AS n FROM runs WHERE counted AND kind = 'run'),
lines AS (
    SELECT unnest([
    {n: 1, subject: 'card', study: (SELECT text FROM study WHERE arm = 'card'), here: cards, consequence: 'Times and power belong to a card. Memory, scheduling and steps carry over at equal KV blocks.'},
    {n: 2, subject: 'power limit', study: (SELECT text FROM study WHERE arm = 'power_limit'), here: (SELECT string_agg(DISTINCT (value::BIGINT // 1000) || ' W', ', ') FROM sitting_facts WHERE key = 'gpu.power_limit_mw'), consequence: 'Decides clocks under load.'},
    {n: 3, subject: 'driver', study: (SELECT text FROM study WHERE arm = 'driver'), here: (SELECT value FROM fact WHERE key = 'gpu.driver'), consequence: ''},
    {n: 4, subject: 'vLLM', study: (SELECT text FROM study WHERE arm = 'engine_version'), here: versions, consequence: 'The charge for graphs on the KV pool is this version''s.'},
    {n: 5, subject: 'engine', study: 'vLLM', here: CASE WHEN simulated THEN 'a stand-in engine' ELSE 'vLLM' END, consequence: ''},
    {n: 6, subject: 'weights', study: (SELECT text FROM study WHERE arm = 'weights'), here: r.weights, consequence: 'With random weights steps, memory and scheduling are the real model''s. Time is too only where the power limit does not bind (power-capped share in the table of energy), because power depends on the data.'},
    {n: 7, subject: 'memory budget', study: 'not stated (default: 0.92 of 80 GB)', here: coalesce((j ->> '$.engine.memory_budget_gib') || ' GiB', 'utilisation ' || (j ->> '$.engine.gpu_memory_utilization')), consequence: CASE WHEN study_budget_gib IS NOT NULL THEN 'Set so that the KV pool equals that of the study''s 80 GB card; that overload agrees with the study is near circular.' ELSE 'Decides the KV pool.' END},
    {n: 8, subject: 'context', study: (SELECT text FROM study WHERE arm = 'max_model_len'), here: context, consequence: 'Decides the overload figure.'},
    {n: 9, subject: 'KV blocks', study: 'as found at each start', here: CASE j ->> '$.engine.pin_kv_blocks' WHEN 'true' THEN 'an arm''s count is the same in all blocks' WHEN 'false' THEN 'as found at each start' END, consequence: 'Steps fall in jumps with the pool: a few blocks can move an arm over one.'},
    {n: 10, subject: 'prefix caching', study: 'not stated (default: on)', here: CASE WHEN contains(j ->> '$.engine.flags', '--no-enable-prefix-caching') THEN 'off' WHEN j ->> '$.engine.flags' IS NOT NULL THEN 'on' END, consequence: 'On, it shortens the recompute after a preemption, and prompts of one seed can find each other.'},
    {n: 11, subject: 'sampler', study: 'not stated', here: CASE j ->> '$.engine.environment.VLLM_USE_FLASHINFER_SAMPLER' WHEN '0' THEN 'PyTorch (FlashInfer off)' WHEN '1' THEN 'FlashInfer' END, consequence: 'FlashInfer''s is compiled within the first start.'},
    {n: 12, subject: 'temperature', study: 'not stated (the client sends none)', here: j ->> '$.engine.temperature', consequence: 'Lengths are fixed by the load, so the work is the same.'},
    {n: 13, subject: 'model runner', study: 'not stated', here: CASE j ->> '$.engine.environment.VLLM_USE_V2_MODEL_RUNNER' WHEN '0' THEN 'V1' WHEN '1' THEN 'V2' END, consequence: 'V2 neither charges graphs to the KV pool nor reports padding.'},
    {n: 14, subject: 'probe', study: 'one request by a separate tool', here: (j ->> '$.engine.probe.input_tokens') || ' tokens in, ' || (j ->> '$.engine.probe.output_tokens') || ' out, before the load', consequence: 'Its first token ends the cold start.'},
    {n: 15, subject: 'warm-up', study: 'excluded, length not stated', here: warmups || ' requests before the window', consequence: ''},
    {n: 16, subject: 'readiness', study: (SELECT text FROM study WHERE arm = 'readiness'), here: 'polled every 20 ms', consequence: 'No grid in the cold starts.'},
    {n: 17, subject: 'order', study: 'not stated', here: CASE WHEN ordered THEN 'all arms of a block back to back, shuffled' END, consequence: CASE WHEN fewest >= 3 THEN 'Drift of the machine averages out over the blocks.' ELSE 'With fewer than three blocks drift of the machine does not average out.' END},
    {n: 18, subject: 'prompts', study: 'one fixed set', here: 'one set a repetition (' || seeds || ' here), the same for every arm of a block', consequence: CASE WHEN fewest > 1 THEN 'Effects are not of one set of prompts.' ELSE 'With one repetition of a cell its effects are of one set of prompts.' END},
    {n: 19, subject: 'repetitions', study: (SELECT text FROM study WHERE arm = 'repetitions'), here: CASE WHEN fewest = most THEN fewest::VARCHAR ELSE fewest || ' to ' || most END || ' of a cell and arm', consequence: 'Fewer than five: wide intervals, or none.'},
    {n: 20, subject: 'energy', study: (SELECT text FROM study WHERE arm = 'energy'), here: CASE WHEN metered.n > 0 THEN 'counter over the load''s own window, in ' || metered.n || ' runs of this campaign' END, consequence: 'The energy of the load itself.'},
    {n: 21, subject: 'batching layer', study: 'not watched (announced as next step)', here: CASE WHEN traced.n > 0 THEN 'every engine step recorded, in ' || traced.n || ' runs' END, consequence: 'Steps, padding and preemptions are counted.'},
    {n: 22, subject: 'neighbours', study: 'not stated', here: CASE WHEN beside.n > 0 THEN beside.n || ' of ' || beside.total || ' counted runs had another run or prime, or one of the plain loop or the sweep, active on the same machine, on another GPU, at some moment of the run (column beside in the table of all runs)' END, consequence: 'Host cores and memory were shared: eager arms are host-bound and may be disturbed.'},
    {n: 23, subject: 'model and GPU', study: 'not stated', here: 'each GPU ran one model only (' || apart.profiles || ')', consequence: 'A difference between models is one between GPUs and their neighbours too.'}
    ], recursive := true) FROM c, r, blocks, traced, metered, beside, apart, (SELECT study_budget_gib FROM summary)
)
SELECT subject, study, coalesce(here, 'not on record') AS here, CASE WHEN here IS NULL THEN 'not known' WHEN here = study OR starts_with(here, study) THEN 'same' WHEN starts_with(study, 'not stated') THEN 'not known' ELSE 'differs' END AS compared, consequence
FROM lines WHERE here IS NOT NULL OR subject NOT IN ('neighbours', 'model and GPU') ORDER BY n;
