-- title: What padding costs: every batch size captured
-- note: The study's hypothesis put to the test. Both arms have eager's KV blocks; graphs_unpadded captures every size up to 40 and so pads no decode step. Ratios: unpadded over padded, paired by block. Padded share: of the tokens of FULL steps while requests wait.
-- empty: Needs blocks with graphs_unpadded and graphs_kv_matched: suite mechanism.
WITH share AS (SELECT setup, model, profile, arm, scaled(estimate, 100) AS pct FROM estimates WHERE metric = 'padded_share_full')
SELECT e.setup, e.model, e.profile, f3(any_value(ratio) FILTER (metric = 'output_tok_s')) AS throughput_ratio, any_value(verdict) FILTER (metric = 'output_tok_s') AS without_padding_it_is,
       f3(any_value(ratio) FILTER (metric = 'tpot_ms')) AS tpot_ratio, f3(any_value(ratio) FILTER (metric = 'steps')) AS steps_while_requests_wait_ratio,
       f1(any_value(p.pct)) AS padding_pct, f1(any_value(u.pct)) AS padding_when_unpadded_pct
FROM effects e
LEFT JOIN share p ON (p.setup, p.model, p.profile, p.arm) = (e.setup, e.model, e.profile, 'graphs_kv_matched')
LEFT JOIN share u ON (u.setup, u.model, u.profile, u.arm) = (e.setup, e.model, e.profile, 'graphs_unpadded')
WHERE arm_a = 'graphs_unpadded' AND arm_b = 'graphs_kv_matched' AND metric IN ('output_tok_s', 'tpot_ms', 'steps') GROUP BY e.setup, e.model, e.profile ORDER BY ALL;
