-- title: Output tokens/s against eager: every block, mean, 95% interval where n > 1; dashed: no change
-- kind: dots
-- unit: ratio
-- axis: log
SELECT setup, model, profile, arm_a, points, [] AS blocks, ratio.mean, ratio.lo, ratio.hi, [] AS hollow, 1::DOUBLE AS reference
FROM effects WHERE metric = 'output_tok_s' AND arm_b = 'eager' AND points IS NOT NULL ORDER BY setup, model, profile, arm_a;
