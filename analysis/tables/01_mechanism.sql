-- title: Total effect = effect at equal KV x KV tax
-- part: Why
-- note: Output tokens per second, ratios paired by block. At equal KV: graphs and torch.compile against eager with the same number of KV blocks. KV tax: the smaller pool of the graphs arm against eager's pool. Two routes: with graphs given eager's pool, or eager given the graphs arm's pool. Padding changes with the pool too: the tax of the first route includes that change, and only graphs_unpadded separates the two (table What padding costs); eager pads nothing, so in the second route padding is within the effect at equal KV. A total not below 1 is no loss: the factors then say what graphs gain and what the pool takes from it. Product: the two factors multiplied; it equals the total exactly where all rest on the same blocks.
-- chart: mechanism
-- empty: Needs blocks with graphs, eager and graphs_kv_matched (or eager_kv_matched): suite mechanism.
WITH e AS (SELECT setup, model, profile, arm_a, arm_b, ratio, verdict FROM effects WHERE metric = 'output_tok_s'),
routes(route, kv_a, kv_b, tax_a, tax_b) AS (VALUES
    ('graphs get eager''s pool', 'graphs_kv_matched', 'eager', 'graphs', 'graphs_kv_matched'),
    ('eager gets graphs'' pool', 'graphs', 'eager_kv_matched', 'eager_kv_matched', 'eager'))
SELECT t.setup, t.model, t.profile, route, f3(t.ratio) AS total_effect, t.verdict AS total_is,
       f3(k.ratio) AS at_equal_kv, k.verdict AS at_equal_kv_is, f3(x.ratio) AS kv_tax, x.verdict AS kv_tax_is,
       d3(k.ratio.mean * x.ratio.mean) AS product
FROM routes
JOIN e k ON k.arm_a = kv_a AND k.arm_b = kv_b
JOIN e x ON x.arm_a = tax_a AND x.arm_b = tax_b AND (x.setup, x.model, x.profile) = (k.setup, k.model, k.profile)
JOIN e t ON t.arm_a = 'graphs' AND t.arm_b = 'eager' AND (t.setup, t.model, t.profile) = (k.setup, k.model, k.profile)
ORDER BY t.setup, t.model, t.profile, route;
