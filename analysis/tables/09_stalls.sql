-- title: Without the host's stalls (computed)
-- note: Computed, not measured: the output tokens/s of a run had none of its steps that only decode taken longer than 1.02 times the 10th percentile of all steps of its cell and arm with as many running requests (where there are 20 or more). What goes beyond is taken off the run's duration; prefill is left as it was. One rule for all arms: it takes the few per cent by which any step varies off the arms with graphs, and the time in which the host's CPU was late off those that wait for it. Runs of an arm share the limits and come out alike by construction, so there is no interval. Nearest to what this host would show undisturbed; a faster or slower CPU would move eager more. Ratios against eager: means over the blocks that have both, measured and computed.
-- empty: Not measured: no counted run has a step trace.
SELECT e.setup, e.model, e.profile, e.arm, (e.estimate).n AS runs, d1(100 * s.estimate.mean) AS taken_off_pct, d1(e.estimate.mean) AS output_tok_s, d1(c.estimate.mean) AS computed_tok_s,
       f3(m.ratio) AS measured_ratio, d3(x.ratio.mean) AS computed_ratio, list_transform(x.points, lambda p: d3(p)) AS computed_points
FROM estimates e JOIN estimates s USING (setup, model, profile, arm) JOIN estimates c USING (setup, model, profile, arm)
LEFT JOIN against_eager m ON (m.setup, m.model, m.profile, m.arm, m.metric) = (e.setup, e.model, e.profile, e.arm, 'output_tok_s')
LEFT JOIN against_eager x ON (x.setup, x.model, x.profile, x.arm, x.metric) = (e.setup, e.model, e.profile, e.arm, 'capped_tok_s')
WHERE e.metric = 'output_tok_s' AND s.metric = 'stalled_share' AND c.metric = 'capped_tok_s' ORDER BY ALL;
