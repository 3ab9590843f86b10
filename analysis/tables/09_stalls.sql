-- title: Without the host's stalls (computed)
-- note: An estimate of what this host would show undisturbed, computed, not measured: the output tokens/s of a run had no five decode steps in a row (steps that only decode, at one number of decoding requests) taken longer on average than 1.02 times the 10th percentile of all such means of its cell and arm at that number. What goes beyond is taken off the run's duration. One rule for all arms; where fewer than 20 means are alike, in steps that read a prompt, and in the last before one, nothing is taken off, nor from an arm that was slow throughout all its runs. Judged: share of the window in such fives; of a run with less than 25% nothing is computed. The machines share these limits, so that on a slower GPU steady steps count as stalled too. It moves each arm towards its own best tenth, and so moves the arm that varies more further, whatever made it vary: an arm from which less is taken than from eager rather comes out too low against it, one from which more is taken too high. No interval and no n: the runs of an arm share the limits, so that points lie closer than runs do. Instead what two other rules give, a stricter one (the 5th percentile itself) and a laxer one (1.1 times the median); they need not enclose the ratio. Another CPU would move the arms without graphs. Ratios against eager: means over the blocks that have both, measured and computed.
-- empty: Not measured: no counted run has a step trace.
WITH figures AS (
    SELECT setup, model, profile, arm, any_value(estimate) FILTER (metric = 'output_tok_s') AS measured, any_value(estimate.mean) FILTER (metric = 'stalled_share') AS share, any_value(estimate.mean) FILTER (metric = 'judged_share') AS judged,
           any_value(estimate.mean) FILTER (metric = 'capped_tok_s') AS computed
    FROM estimates GROUP BY ALL
), ratios AS (
    SELECT setup, model, profile, arm, any_value(ratio) FILTER (metric = 'output_tok_s') AS measured_ratio, any_value(ratio.mean) FILTER (metric = 'capped_tok_s') AS computed_ratio,
           min(ratio.mean) FILTER (metric IN ('capped_stricter_tok_s', 'capped_laxer_tok_s')) AS least, max(ratio.mean) FILTER (metric IN ('capped_stricter_tok_s', 'capped_laxer_tok_s')) AS greatest, any_value(points) FILTER (metric = 'capped_tok_s') AS points
    FROM against_eager GROUP BY ALL
)
SELECT setup, model, profile, arm, measured.n AS runs, d0(100 * judged) AS judged_pct, d1(100 * share) AS taken_off_pct, d1(measured.mean) AS output_tok_s, d1(computed) AS computed_tok_s, f3(measured_ratio) AS measured_ratio,
       d3(computed_ratio) AS computed_ratio, d3(least) || ' to ' || d3(greatest) AS by_other_rules, list_transform(points, lambda p: d3(p)) AS computed_points
FROM figures LEFT JOIN ratios USING (setup, model, profile, arm) WHERE computed IS NOT NULL ORDER BY ALL;
