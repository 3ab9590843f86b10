-- title: The study's two factors, measured
-- note: The study sets a base gain that shrinks with model size against a padding loss that grows with overload. TPOT at concurrency 1: graphs over eager where nothing queues, the base gain. At equal KV: output tokens/s of graphs with eager's pool over eager. KV tax: graphs over graphs with eager's pool, together with the change in padding that comes with the pool. Steps: the same two arms' engine steps while requests wait; by the model: what the scheduling model gives for the two pools, without any time. Without padding: every batch size captured over graphs, both with eager's pool. Only the last figure separates pool and padding: open where it is not measured. Where throughput is lower, a tax as large as the extra steps and no gain without padding put the loss on the pool; where it is not, there is no loss to explain.
-- empty: No profile has graphs and eager.
SELECT t.setup, t.model, t.profile, f3(base.ratio) AS tpot_at_concurrency_1, f3(t.ratio) AS throughput, t.verdict AS throughput_is,
       f3(equal.ratio) AS at_equal_kv, f3(tax.ratio) AS kv_tax, f3(steps.ratio) AS steps_while_requests_wait, d3(steps_ratio) AS steps_while_requests_wait_by_the_model, f3(pad.ratio) AS without_padding
FROM effects t
LEFT JOIN effects base ON (base.setup, base.model, base.profile, base.metric, base.arm_a, base.arm_b) = (t.setup, t.model, 'sporadic', 'tpot_ms', 'graphs', 'eager')
LEFT JOIN effects equal ON (equal.setup, equal.model, equal.profile, equal.metric, equal.arm_a, equal.arm_b) = (t.setup, t.model, t.profile, t.metric, 'graphs_kv_matched', 'eager')
LEFT JOIN effects tax ON (tax.setup, tax.model, tax.profile, tax.metric, tax.arm_a, tax.arm_b) = (t.setup, t.model, t.profile, t.metric, 'graphs', 'graphs_kv_matched')
LEFT JOIN effects steps ON (steps.setup, steps.model, steps.profile, steps.metric, steps.arm_a, steps.arm_b) = (t.setup, t.model, t.profile, 'steps', 'graphs', 'graphs_kv_matched')
LEFT JOIN effects pad ON (pad.setup, pad.model, pad.profile, pad.metric, pad.arm_a, pad.arm_b) = (t.setup, t.model, t.profile, t.metric, 'graphs_unpadded', 'graphs_kv_matched')
LEFT JOIN model_ratios model ON (model.setup, model.model, model.profile) = (t.setup, t.model, t.profile)
WHERE t.metric = 'output_tok_s' AND t.arm_a = 'graphs' AND t.arm_b = 'eager' ORDER BY t.setup, t.model, t.profile;
