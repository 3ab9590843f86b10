-- title: Requests until a longer start is repaid: every block that repays it, mean, Fieller's 95% interval where n > 1
-- kind: dots
-- unit: requests
-- axis: log
SELECT setup, model, profile, arm, list(CASE WHEN saving_s > 0 THEN greatest(extra_s / saving_s, 0) ELSE 'inf' END ORDER BY pair_id), [] AS blocks,
       any_value(requests), any_value(fewest), any_value(most), [] AS hollow, NULL AS reference
FROM break_evens JOIN repayments USING (setup, model, profile, arm) WHERE extra_s IS NOT NULL AND saving_s IS NOT NULL
GROUP BY setup, model, profile, arm ORDER BY setup, model, profile, arm;
