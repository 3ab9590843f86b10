-- title: Throughput: every run, a block's runs joined; mean, 95% interval where n > 1; each cell has its own scale
-- kind: dots
-- unit: tokens/s
-- axis: own
SELECT setup, model, profile, arm, points, blocks, estimate.mean, estimate.lo, estimate.hi, [] AS hollow, NULL AS reference
FROM estimates JOIN (
    SELECT setup, model, profile, arm, metric, list(pair_id ORDER BY repetition, pass_number, pair_id) AS blocks FROM run_values GROUP BY ALL
) USING (setup, model, profile, arm, metric)
WHERE metric = 'output_tok_s' ORDER BY setup, model, profile, arm;
