-- title: Throughput
-- part: Throughput
-- note: Output tokens per second over the bench client's window. Ratio to eager: geometric mean over blocks that have both arms, 95% t interval on the log scale. p: exact sign-flip permutation test, two-sided; with five blocks it cannot fall below 0.0625, and one block gives none. Warnings: of the gates, with the runs that have them, and of a drift the size where it is largest: median step time in the thirds of the window, and least and greatest in its tenths; nothing is corrected for what they tell of.
-- chart: throughput
SELECT e.setup, e.model, e.profile, e.arm, f1(e.estimate) AS output_tok_s, list_transform(e.points, lambda x: d1(x)) AS points,
       f3(a.ratio) AS ratio_to_eager, coalesce(a.verdict, 'not paired') AS verdict, CASE WHEN e.arm = 'eager' THEN '' ELSE coalesce(CASE WHEN a.ratio.n > 1 THEN d3(a.p)::VARCHAR END, 'none') END AS p, coalesce(warnings, '') AS warnings
FROM estimates e LEFT JOIN against_eager a USING (setup, metric, model, profile, arm) LEFT JOIN cell_warnings USING (setup, model, profile, arm)
WHERE metric = 'output_tok_s' ORDER BY ALL;
