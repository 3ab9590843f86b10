-- title: What was run
-- note: Lengths and counts are per run; every run has its own server start. Counted runs only. Blocks: repetitions, each run whole; one that was run whole again counts again.
-- empty: No run counts yet.
SELECT setup, model, profile, any_value(num_prompts) AS prompts, any_value(concurrency) AS concurrency, any_value(input_tokens) AS input_tokens,
       any_value(output_tokens) AS output_tokens, coalesce(any_value(range_ratio), 0) AS range_ratio, count(DISTINCT pair_id) AS blocks,
       list(DISTINCT arm ORDER BY arm) AS arms, count(*) AS runs
FROM runs WHERE counted AND kind = 'run' GROUP BY setup, model, profile ORDER BY ALL;
