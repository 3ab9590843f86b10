-- title: Drift within a cell
-- note: Slope of output tokens/s over the runs of a cell and arm, in the order in which they ran, in percent of the mean a run, with its 95% interval (from three runs on).
-- empty: No run counts yet.
SELECT setup, model, profile, arm, list_transform(points, lambda x: d1(x)) AS points, f2(slope_pct) AS slope_a_run_pct,
       CASE WHEN slope_pct.lo IS NULL THEN 'needs three runs' WHEN slope_pct.lo > 0 THEN 'rises' WHEN slope_pct.hi < 0 THEN 'falls' ELSE 'no drift resolved' END AS drift
FROM drifts WHERE metric = 'output_tok_s' ORDER BY setup, model, profile, arm;
