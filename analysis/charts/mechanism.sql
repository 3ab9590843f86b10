-- title: Graphs' total effect = effect at equal KV, then KV tax: mean log ratios of tokens/s over n blocks, no intervals
-- kind: bars
-- unit: 100 x ln(ratio)
WITH e AS (SELECT setup, model, profile, arm_a, arm_b, n, 100 * ln(ratio.mean) AS x FROM effects WHERE metric = 'output_tok_s' AND ratio IS NOT NULL),
routes(route, kv_a, kv_b, tax_a, tax_b) AS (VALUES
    ('graphs get eager''s pool', 'graphs_kv_matched', 'eager', 'graphs', 'graphs_kv_matched'), ('eager gets graphs'' pool', 'graphs', 'eager_kv_matched', 'eager_kv_matched', 'eager'))
SELECT * EXCLUDE (place) FROM (SELECT k.setup, k.model, k.profile || ', ' || route AS profile, unnest(['at equal KV', 'KV tax', 'total']) AS label, label AS part,
       unnest([0, k.x, 0]) AS begins, unnest([k.x, k.x + t.x, total.x]) AS ends, unnest([k.n, t.n, total.n]) AS n, unnest([1, 2, 3]) AS place
FROM routes JOIN e k ON (k.arm_a, k.arm_b) = (kv_a, kv_b) JOIN e t ON (t.arm_a, t.arm_b, t.setup, t.model, t.profile) = (tax_a, tax_b, k.setup, k.model, k.profile)
JOIN e total ON (total.arm_a, total.arm_b, total.setup, total.model, total.profile) = ('graphs', 'eager', k.setup, k.model, k.profile) ) ORDER BY setup, model, profile, place;
