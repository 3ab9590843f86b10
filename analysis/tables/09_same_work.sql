-- title: Same work
-- note: What each run was given and did. Ranges where runs differ; a block is equal when all of its arms have the same seed, requests, prompt tokens and output tokens.
-- empty: No run counts yet.
WITH b AS (
    SELECT setup, model, profile, pair_id, count(DISTINCT (seed, bench_completed, bench_input_tokens, bench_output_tokens)) = 1 AS equal
    FROM runs WHERE counted AND kind = 'run' GROUP BY ALL
)
SELECT r.setup, r.model, r.profile, r.arm, count(*) AS runs, span_text(min(bench_completed), max(bench_completed)) AS completed, span_text(min(bench_failed), max(bench_failed)) AS failed,
       span_text(min(bench_input_tokens), max(bench_input_tokens)) AS input_tokens, span_text(min(bench_output_tokens), max(bench_output_tokens)) AS output_tokens,
       count(*) FILTER (NOT equal) AS runs_in_unequal_blocks
FROM runs r JOIN b USING (setup, model, profile, pair_id) WHERE counted AND kind = 'run' GROUP BY r.setup, r.model, r.profile, r.arm ORDER BY ALL;
