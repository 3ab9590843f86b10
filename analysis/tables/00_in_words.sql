-- title: The answer in words
-- note: Written by SQL from the tables below. Each change names the arm that it is against; changes are paired by block, with their 95% interval; one block has none. Not resolved: the interval holds no change, or there are fewer than three blocks.
-- empty: Needs blocks with graphs and eager.
-- part: The answer
WITH e AS (
    SELECT *, model || ' ' || profile AS cell, coalesce(verdict, 'not resolved') AS is_
    FROM effects WHERE ratio IS NOT NULL
), r AS (
    SELECT *, change_text(ratio) || CASE is_ WHEN 'not resolved' THEN ', not resolved' ELSE '' END AS change,
           CASE is_ WHEN 'not resolved' THEN cell || ' not resolved (n = ' || n || '), measured ratio ' || format('{:.3f}', ratio.mean) ELSE cell || ' ' || is_ || ', ratio ' || estimate_text(f3(ratio)) END AS told
    FROM e
),
computed AS (SELECT setup, cell, arm_a, arm_b, format('{:+.1f}% (by a stricter and a laxer rule {:+.1f} and {:+.1f}; repetitions {:+.1f} to {:+.1f})', 100 * (any_value(ratio.mean) FILTER (metric = 'capped_tok_s') - 1), 100 * (any_value(ratio.mean) FILTER (metric = 'capped_stricter_tok_s') - 1), 100 * (any_value(ratio.mean) FILTER (metric = 'capped_laxer_tok_s') - 1), round(100 * (list_min(any_value(points) FILTER (metric = 'capped_tok_s')) - 1), 1) + 0, round(100 * (list_max(any_value(points) FILTER (metric = 'capped_tok_s')) - 1), 1) + 0) AS pct, any_value(ln(ratio.mean)) FILTER (metric = 'capped_tok_s') AS l FROM e WHERE metric LIKE 'capped%' GROUP BY ALL),
cells AS (SELECT * FROM r WHERE profile <> '(all)' AND metric = 'output_tok_s'),
totals AS (SELECT cells.* REPLACE (told || CASE WHEN is_ <> 'not resolved' AND abs(l) < abs(ln(ratio.mean)) / 2 THEN ' (provisional: computed without the host''s stalls, less than half of it is left, ' || pct || ')' ELSE '' END AS told) FROM cells LEFT JOIN computed USING (setup, cell, arm_a, arm_b) WHERE arm_a = 'graphs' AND arm_b = 'eager'),
unpadded AS (SELECT * FROM cells WHERE arm_a = 'graphs_unpadded' AND arm_b = 'graphs_kv_matched'),
trimmed AS (SELECT *, n < 3 AS open, is_ <> 'lower' AND NOT open AS advised FROM cells WHERE arm_a = 'graphs_trimmed' AND arm_b = 'graphs'),
steps_here AS (
    SELECT e.setup, e.decoding, 100 * (1 - k.q[2] / e.q[2]) AS quiet, 100 * (1 - k.q[3] / e.q[3]) AS middle
    FROM (SELECT setup, mode(decoding) AS decoding FROM decode_fives WHERE (model, profile, arm) = ('32b', 'sustained', 'eager') GROUP BY setup) JOIN usual_steps e USING (setup, decoding) JOIN usual_steps k USING (setup, model, profile, decoding)
    WHERE (e.model, e.profile, e.arm, k.arm) = ('32b', 'sustained', 'eager', 'graphs_kv_matched')
),
padding AS (SELECT setup, model, profile, arm, format('{:.1f}% (n = {})', 100 * estimate.mean, estimate.n) AS pct FROM estimates WHERE metric = 'padded_share_full' AND estimate.mean IS NOT NULL),
pools AS (SELECT setup, model, round(avg(kv_blocks) FILTER (arm = 'graphs')) AS graphs, round(avg(kv_blocks) FILTER (arm = 'eager')) AS eager FROM run_figures JOIN runs USING (folder, kv_tokens, max_concurrency) GROUP BY ALL),
answers AS (
    SELECT setup, 1 AS n, 'What does --enforce-eager cost?' AS question, 'Output tokens/s with eager against graphs and torch.compile: ' || string_agg(cell || ' ' || change, '; ' ORDER BY cell) || '.'
           || coalesce(' Computed, without the host''s stalls: ' || (SELECT string_agg(cell || ' ' || pct, '; ' ORDER BY cell) FROM computed c WHERE c.setup = r.setup AND arm_a = 'eager' AND arm_b = 'graphs') || '.', '')
           || coalesce(' Mean time to first token: ' || (SELECT string_agg(cell || ' ' || change, '; ' ORDER BY cell) FROM r t WHERE t.setup = r.setup AND metric = 'ttft_ms' AND arm_a = 'eager' AND arm_b = 'graphs') || '.', '')
           || coalesce(' Warnings on these runs: ' || (SELECT string_agg(model || ' ' || profile || ' ' || arm || ' ' || warnings, '; ' ORDER BY model, profile, arm) FROM cell_warnings w WHERE w.setup = r.setup AND arm IN ('graphs', 'eager') AND (model, profile) IN (SELECT (model, profile) FROM totals t WHERE t.setup = r.setup)) || '.', '')
           || (SELECT CASE WHEN count(*) FILTER (share > 0.1) = 0 THEN '' ELSE ' Beside another GPU at work: ' || count(*) FILTER (share > 0.1) || ' of these ' || count(*) || ' runs.' END || ' All with step trace and GPU samples, whose own cost is a table below.' FROM window_shares s WHERE s.setup = r.setup AND arm IN ('graphs', 'eager') AND (model, profile) IN (SELECT (model, profile) FROM totals t WHERE t.setup = r.setup)) AS answer
    FROM r WHERE profile <> '(all)' AND metric = 'output_tok_s' AND arm_a = 'eager' AND arm_b = 'graphs' GROUP BY setup
    UNION ALL
    SELECT setup, 2, 'What does it buy?', 'A warm start: '
           || string_agg(model || CASE is_ WHEN 'higher' THEN ' shorter by ' || replace(estimate_text(difference), ' (n', ' s (n') WHEN 'lower' THEN ' longer, graphs less eager ' || replace(estimate_text(difference), ' (n', ' s (n')
                ELSE ' graphs less eager ' || replace(estimate_text(difference), ' (n', ' s (n') || ', not resolved' END, '; ' ORDER BY model) || '.'
           || coalesce(' Requests until the extra start of the same blocks is repaid: ' || (SELECT string_agg(model || ' ' || profile || ' ' || requests_text(requests) || coalesce(' [' || requests_text(fewest) || ', ' || requests_text(most) || ']', '')
                || ' at ' || replace(estimate_text(extra), ' (n', ' s (n') || coalesce(' (computed without the host''s stalls ' || requests_text(calm_requests) || ')', ''), '; ' ORDER BY model, profile) FROM break_evens b WHERE b.setup = r.setup AND arm = 'graphs') || '.', '')
           || coalesce(' Starts that should be alike, whatever the load and the KV pool (graphs_kv_matched and graphs_bare among graphs, eager_kv_matched among eager): ' || (SELECT string_agg(model || ' ' || arm || ' ' || starts, '; ' ORDER BY model, arm) FROM like_starts l WHERE l.setup = r.setup AND arm IN ('graphs', 'eager') AND n > 1)
                || '; where they differ much, the extra start is as uncertain.', '')
    FROM r WHERE metric = 'start_s' AND profile = '(all)' AND arm_a = 'graphs' AND arm_b = 'eager' GROUP BY setup
    UNION ALL
    SELECT t.setup, 3, 'What can make graphs lose?', 'The KV pool: vLLM takes the memory of graphs out of it (' || string_agg(DISTINCT t.model || ': ' || p.graphs::BIGINT || ' KV blocks instead of ' || p.eager::BIGINT, '; ') || '). With the smaller pool, together with the change in padding that comes with it, throughput changes by: '
           || string_agg(t.cell || ' ' || t.change, '; ' ORDER BY t.cell) || '.' || coalesce(' The same two pools without graphs, so without padding: ' || string_agg(b.cell || ' ' || b.change, '; ' ORDER BY t.cell) || '.', '') || ' A pool holds whole requests, so what it costs comes in steps and depends on their lengths.' || coalesce(' Padding while requests wait, of the steps that run as one whole graph (FULL), the smaller pool against eager''s: ' || string_agg(t.cell || ' ' || own.pct || ' against ' || matched.pct, '; ' ORDER BY t.cell) || '.', '')
           || ' In all, with their own pools: ' || string_agg(g.cell || CASE WHEN g.is_ = 'lower' THEN ' graphs lost, ' WHEN g.is_ = 'higher' THEN ' graphs did not lose, ' WHEN g.ratio.mean >= 1 THEN ' graphs did not lose in what was measured, ' ELSE ' graphs were slower in what was measured, ' END || g.change, '; ' ORDER BY t.cell) || '. With equal pools graphs against eager: ' || string_agg(e.cell || ' ' || e.change, '; ' ORDER BY t.cell) || '.'
           || coalesce(' Computed, without the host''s stalls: ' || string_agg(t.cell || ' graphs against eager ' || ct.pct || ', with equal pools ' || ck.pct || ', the smaller pool ' || cp.pct, '; ' ORDER BY t.cell) || '.', '')
           || CASE WHEN count(u.cell) < count(*) THEN ' Pool and padding are not separated' || CASE WHEN count(u.cell) > 0 THEN ' in every cell' ELSE '' END || ': open until graphs_unpadded is measured.' ELSE '' END
    FROM cells t JOIN cells e ON (e.setup, e.cell, e.arm_a, e.arm_b) = (t.setup, t.cell, 'graphs_kv_matched', 'eager') JOIN pools p ON (p.setup, p.model) = (t.setup, t.model)
    JOIN totals g ON (g.setup, g.cell) = (t.setup, t.cell) LEFT JOIN cells b ON (b.setup, b.cell, b.arm_a, b.arm_b) = (t.setup, t.cell, 'eager_kv_matched', 'eager') LEFT JOIN unpadded u ON (u.setup, u.cell) = (t.setup, t.cell)
    LEFT JOIN padding own ON (own.setup, own.model, own.profile, own.arm) = (t.setup, t.model, t.profile, 'graphs') LEFT JOIN padding matched ON (matched.setup, matched.model, matched.profile, matched.arm) = (t.setup, t.model, t.profile, 'graphs_kv_matched')
    LEFT JOIN computed ct ON (ct.setup, ct.cell, ct.arm_a, ct.arm_b) = (t.setup, t.cell, 'graphs', 'eager') LEFT JOIN computed ck ON (ck.setup, ck.cell, ck.arm_a, ck.arm_b) = (t.setup, t.cell, 'graphs_kv_matched', 'eager')
    LEFT JOIN computed cp ON (cp.setup, cp.cell, cp.arm_a, cp.arm_b) = (t.setup, t.cell, 'graphs', 'graphs_kv_matched')
    WHERE t.arm_a = 'graphs' AND t.arm_b = 'graphs_kv_matched' GROUP BY t.setup
    UNION ALL
    SELECT t.setup, 3.5, 'Why did they lose in the study?', format('Computed from its own figures: its pool with graphs was {:.1f}% smaller ({} KV blocks for {}), for which the scheduling model needs {:+.1f}% engine steps while requests wait ({} for {}). Graphs then win only if a decode step is over {:.1f}% shorter. There it was {:.2f}% shorter, at one request at a time: {:+.1f}% decode time, diluted by what prefill takes; it measured {:+.2f}% output tokens/s.',
               100 * (1 - blocks[1] / blocks[2]), blocks[1], blocks[2], 100 * (m.steps[1] / m.steps[2] - 1), m.steps[1], m.steps[2], 100 * (1 - m.steps[2] / m.steps[1]), gain, 100 * (m.steps[1] / m.steps[2] * (1 - gain / 100) - 1), pub('throughput', '32b', 'sustained', 'change_pct'))
           || coalesce(format(' Here it is, with equal pools and {} decoding requests, {:.1f}% shorter while the host is quiet (10th percentile of five steps in a row) and {:.1f}% in the median.', h.decoding, h.quiet, h.middle), '')
    FROM totals t LEFT JOIN steps_here h USING (setup), published_pools, (SELECT pub('tpot_ms', '32b', 'sporadic', 'gain_pct') AS gain), (SELECT list(steps ORDER BY kv_blocks) AS steps FROM model_steps WHERE setup = 'published study') m
    WHERE t.cell = '32b sustained' AND len(m.steps) = 2
    UNION ALL
    SELECT s.setup, 4, 'Is it padding to captured sizes?', coalesce((SELECT 'Without padding, with the same pool and nearly the same steps, throughput changes by: ' || string_agg(cell || ' ' || change, '; ' ORDER BY cell) || '.' FROM unpadded c WHERE c.setup = s.setup),
           'Not measured: needs the arm graphs_unpadded (suite mechanism).')
    FROM (SELECT DISTINCT setup FROM cells) s
    UNION ALL
    SELECT s.setup, 5, 'What to set?', concat_ws(' ',
           (SELECT 'Graphs, where they are higher than eager: ' || string_agg(told, '; ' ORDER BY cell) || '.' FROM totals c WHERE c.setup = s.setup AND is_ = 'higher'),
           (SELECT '--enforce-eager, where graphs are lower: ' || string_agg(told, '; ' ORDER BY cell) || '.' FROM totals c WHERE c.setup = s.setup AND is_ = 'lower'),
           (SELECT 'No advice yet between graphs and eager: ' || string_agg(told, '; ' ORDER BY cell) || '.' FROM totals c WHERE c.setup = s.setup AND is_ = 'not resolved'),
           (SELECT 'With graphs, capturing no more sizes than the concurrency needs (--max-cudagraph-capture-size) leaves the KV cache more, and showed no loss on these loads against graphs as they come: ' || string_agg(told, '; ' ORDER BY cell) || '.' FROM trimmed c WHERE c.setup = s.setup AND advised),
           (SELECT 'No advice to trim the captured sizes: ' || string_agg(told, '; ' ORDER BY cell) || '.' FROM trimmed c WHERE c.setup = s.setup AND NOT advised AND NOT open),
           (SELECT 'No advice yet, on fewer than three blocks, to trim the captured sizes (--max-cudagraph-capture-size): ' || string_agg(told, '; ' ORDER BY cell) || '.' FROM trimmed c WHERE c.setup = s.setup AND open),
           (SELECT 'Against eager, graphs captured so: ' || string_agg(told || coalesce(', computed without the host''s stalls ' || pct, ''), '; ' ORDER BY cell) || '.' FROM cells c LEFT JOIN computed USING (setup, cell, arm_a, arm_b) WHERE c.setup = s.setup AND arm_a = 'graphs_trimmed' AND arm_b = 'eager'),
           CASE WHEN s.setup NOT IN (SELECT setup FROM trimmed) THEN 'Trimmed captures are not measured: needs the arm graphs_trimmed (suite mechanism).' END)
    FROM (SELECT DISTINCT setup FROM cells) s
)
SELECT setup, question, answer FROM answers ORDER BY setup, n;
