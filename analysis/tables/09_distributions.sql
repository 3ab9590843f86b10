-- title: Distributions and overlap
-- note: Runs of a cell, each arm against eager. Apart: the least of one lies above the greatest of the other. Standard deviation in percent of the mean; one run has none. With five runs each, ranges that do not overlap have an exact two-sided p of 0.008 if runs were exchangeable.
-- empty: No run counts yet.
SELECT setup, model, profile, metric AS figure, arm, n, figure_text(lowest) AS lowest, figure_text(middle) AS median, figure_text(highest) AS highest, CASE n WHEN 1 THEN 'one run' ELSE d2(sd_pct)::VARCHAR END AS standard_deviation_pct, overlap AS against_eager
FROM spreads WHERE metric IN ('output_tok_s', 'tpot_ms', 'start_s') ORDER BY ALL;
