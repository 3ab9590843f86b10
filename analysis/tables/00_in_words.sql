-- title: The answer in words
-- note: Written by SQL from the tables below. Changes are graphs against eager, paired by block, with their 95% interval; one block has none.
-- empty: Needs blocks with graphs and eager.
-- part: The answer
WITH r AS (SELECT setup, model, profile, metric, arm_a, arm_b, verdict, change_text(ratio) AS change, ratio, difference FROM effects),
cells AS (SELECT *, model || ' ' || profile AS cell FROM r WHERE profile <> '(all)'),
pools AS (SELECT setup, model, round(avg(kv_blocks) FILTER (arm = 'graphs')) AS graphs, round(avg(kv_blocks) FILTER (arm = 'eager')) AS eager FROM run_figures JOIN runs USING (folder, kv_tokens, max_concurrency) GROUP BY ALL),
answers AS (
    SELECT setup, 1 AS n, 'What does --enforce-eager cost?' AS question, 'Output tokens/s with graphs and torch.compile against eager: ' || string_agg(cell || ' ' || change, '; ' ORDER BY model, profile) || '.' AS answer
    FROM cells WHERE metric = 'output_tok_s' AND arm_a = 'graphs' AND arm_b = 'eager' GROUP BY setup
    UNION ALL
    SELECT setup, 2, 'What does it buy?', 'A warm start is shorter: ' || string_agg(model || ' by ' || replace(estimate_text(difference), ' (n', ' s (n'), '; ' ORDER BY model) || '.'
           || coalesce(' Requests until that is repaid: ' || (SELECT string_agg(model || ' ' || profile || ' ' || requests_text(requests) || coalesce(' [' || requests_text(fewest) || ', ' || requests_text(most) || ']', ''), '; ' ORDER BY model, profile) FROM break_evens b WHERE b.setup = r.setup AND arm = 'graphs') || '.', '')
    FROM r WHERE metric = 'start_s' AND profile = '(all)' AND arm_a = 'graphs' AND arm_b = 'eager' GROUP BY setup
    UNION ALL
    SELECT t.setup, 3, 'What can make graphs lose?', 'The KV pool: vLLM takes the memory of graphs out of it (' || string_agg(DISTINCT t.model || ': ' || p.graphs::BIGINT || ' blocks instead of ' || p.eager::BIGINT, '; ') || '). The smaller pool alone changes throughput by: ' || string_agg(t.cell || ' ' || t.change, '; ' ORDER BY t.cell)
           || '. At equal KV graphs against eager: ' || string_agg(e.cell || ' ' || e.change, '; ' ORDER BY t.cell) || '.'
    FROM cells t JOIN cells e ON (e.setup, e.cell, e.metric, e.arm_a, e.arm_b) = (t.setup, t.cell, 'output_tok_s', 'graphs_kv_matched', 'eager') JOIN pools p ON (p.setup, p.model) = (t.setup, t.model)
    WHERE t.metric = 'output_tok_s' AND t.arm_a = 'graphs' AND t.arm_b = 'graphs_kv_matched' GROUP BY t.setup
    UNION ALL
    SELECT s.setup, 4, 'Is it padding to captured sizes?', coalesce((SELECT 'Without padding, all else equal, throughput changes by: ' || string_agg(cell || ' ' || change, '; ' ORDER BY cell) || '.' FROM cells c WHERE c.setup = s.setup AND metric = 'output_tok_s' AND arm_a = 'graphs_unpadded' AND arm_b = 'graphs_kv_matched'),
           'Not measured: needs the arm graphs_unpadded (suite mechanism).')
    FROM (SELECT DISTINCT setup FROM cells) s
    UNION ALL
    SELECT s.setup, 5, 'What to set?', coalesce((SELECT 'Keep graphs and capture no more sizes than the concurrency needs (--max-cudagraph-capture-size); against graphs as they come that changes throughput by: ' || string_agg(cell || ' ' || change, '; ' ORDER BY cell) || '.' FROM cells c WHERE c.setup = s.setup AND metric = 'output_tok_s' AND arm_a = 'graphs_trimmed' AND arm_b = 'graphs'),
           'Not measured: needs the arm graphs_trimmed (suite mechanism).')
    FROM (SELECT DISTINCT setup FROM cells) s
)
SELECT setup, question, answer FROM answers ORDER BY setup, n;
