-- title: What a busy neighbour does
-- note: Output tokens per second of counted runs while another GPU of the host was at work (over half of the load window) against runs without (less than 1% of it), by cell, each run a point in order of repetition; not paired. Moved: change of the mean in per cent with its interval by Welch on the log scale, from two runs of each kind on. Less than 1%: the whole interval lies within 1% either way. At work: a run or prime of this database, or a run of the plain loop or the sweep, under way there, from begin to end, start and compilation included. What other virtual machines of the host did is not known.
-- empty: Not measured: no cell has runs of both kinds (suite neighbour).
WITH cells AS (
    SELECT setup, model, profile, arm, count(*) FILTER (share < 0.01) AS alone, count(*) FILTER (share > 0.5) AS beside,
           list(d1(bench_output_tok_s) ORDER BY repetition, pass_number) FILTER (share < 0.01) AS alone_tok_s, list(d1(bench_output_tok_s) ORDER BY repetition, pass_number) FILTER (share > 0.5) AS beside_tok_s,
           avg(ln(bench_output_tok_s)) FILTER (share > 0.5) - avg(ln(bench_output_tok_s)) FILTER (share < 0.01) AS l,
           var_samp(ln(bench_output_tok_s)) FILTER (share < 0.01) / alone AS a, var_samp(ln(bench_output_tok_s)) FILTER (share > 0.5) / beside AS b
    FROM runs JOIN window_shares USING (folder, setup, model, profile, arm) WHERE runs.gpu_uuid IS NOT NULL GROUP BY ALL HAVING alone > 0 AND beside > 0
), halves AS (
    SELECT c.*, t975 * sqrt(a + b) AS half
    FROM cells c LEFT JOIN student_t ON df = greatest(1, floor((a + b) ** 2 / nullif(a ** 2 / nullif(alone - 1, 0) + b ** 2 / nullif(beside - 1, 0), 0)))
), moved AS (
    SELECT *, struct_pack(mean := 100 * (exp(l) - 1), lo := 100 * (exp(l - half) - 1), hi := 100 * (exp(l + half) - 1), n := alone + beside) AS pct FROM halves
)
SELECT setup, model, profile, arm, alone, beside, alone_tok_s, beside_tok_s, CASE WHEN half IS NOT NULL THEN f2(pct) END AS moved_pct,
       CASE WHEN half IS NULL THEN 'needs two runs of each kind' WHEN pct.lo > -1 AND pct.hi < 1 THEN 'less than 1%' WHEN pct.lo > 1 OR pct.hi < -1 THEN 'more than 1%' ELSE 'not resolved' END AS verdict
FROM moved ORDER BY ALL;
