-- title: The answer in words
-- note: Written by SQL from the tables below. Each change names the arm that it is against; changes are paired by block, with their 95% interval; one block has none. Not resolved: the interval holds no change, or there are fewer than three blocks. Without the host's stalls: computed, not measured, with what a stricter and a laxer rule give and the range over repetitions (table of that name).
-- empty: Needs blocks with graphs and eager.
-- part: The answer
WITH e AS (
    SELECT *, model || ' ' || profile AS cell, coalesce(verdict, 'not resolved') AS is_, CASE is_ WHEN 'not resolved' THEN ', not resolved' ELSE '' END AS resolved,
           change_text(ratio) || resolved AS change
    FROM effects WHERE ratio IS NOT NULL
), computed AS (
    SELECT setup, cell, arm_a, arm_b, any_value(points) FILTER (metric = 'capped_tok_s') AS calm_points, any_value(ratio.mean) FILTER (metric = 'capped_tok_s') AS calm,
           any_value(ratio.mean) FILTER (metric = 'capped_stricter_tok_s') AS stricter, any_value(ratio.mean) FILTER (metric = 'capped_laxer_tok_s') AS laxer
    FROM e WHERE metric LIKE 'capped%' GROUP BY ALL
), cells AS (  -- the measured throughput of two arms, and the same without the host's stalls
    SELECT e.*, estimate_text(f3(ratio)) AS times, is_ <> 'not resolved' AND abs(ln(calm)) < abs(ln(ratio.mean)) / 2 AS provisional,
           pct_text(calm) || '% computed without the host''s stalls (stricter rule ' || pct_text(stricter) || ', laxer ' || pct_text(laxer)
           || CASE WHEN n > 1 THEN '; repetitions ' || pct_text(list_min(calm_points)) || ' to ' || pct_text(list_max(calm_points)) ELSE '' END || ')' AS without_stalls
    FROM e LEFT JOIN computed USING (setup, cell, arm_a, arm_b) WHERE metric = 'output_tok_s' AND profile <> '(all)'
), flag AS (SELECT * FROM cells WHERE (arm_a, arm_b) = ('graphs', 'eager')),
pool AS (SELECT * FROM cells WHERE (arm_a, arm_b) = ('graphs', 'graphs_kv_matched') AND (setup, cell) IN (SELECT (setup, cell) FROM flag)),
unpadded AS (SELECT * FROM cells WHERE (arm_a, arm_b) = ('graphs_unpadded', 'graphs_kv_matched')),
flag_runs AS (SELECT setup, share FROM window_shares WHERE arm IN ('graphs', 'eager') AND (setup, model, profile) IN (SELECT (setup, model, profile) FROM flag)),
padding AS (SELECT setup, model || ' ' || profile AS cell, arm, format('{:.1f}% (n = {})', 100 * estimate.mean, estimate.n) AS pct FROM estimates WHERE metric = 'padded_share_full' AND estimate.mean IS NOT NULL),
blocks AS (SELECT setup, model, round(avg(kv_blocks) FILTER (arm = 'graphs')) AS graphs, round(avg(kv_blocks) FILTER (arm = 'eager')) AS eager FROM run_figures JOIN runs USING (folder, kv_tokens, max_concurrency) GROUP BY ALL),
steps_here AS (  -- a decode step with graphs over one with eager, at equal pools, paired by block
    WITH runs_q AS (
        SELECT f.setup, pair_id, f.arm, decoding, quantile_cont(ms, [0.1, 0.5]) AS q
        FROM decode_fives f JOIN (SELECT setup, mode(decoding) AS decoding FROM decode_fives WHERE (model, profile, arm) = ('32b', 'sustained', 'eager') GROUP BY setup) USING (setup, decoding) JOIN runs USING (folder)
        WHERE (f.model, f.profile) = ('32b', 'sustained') GROUP BY ALL
    )
    SELECT setup, decoding, exp_of(mean95(ln(k.q[1] / e.q[1]))) AS quiet, exp_of(mean95(ln(k.q[2] / e.q[2]))) AS middle, 100 * (min(k.q[1]) / min(e.q[1]) - 1) AS least
    FROM runs_q e JOIN runs_q k USING (setup, pair_id, decoding) WHERE (e.arm, k.arm) = ('eager', 'graphs_kv_matched') GROUP BY ALL
),
-- What to set: between graphs and eager, and whether to trim the captured sizes
which AS (
    SELECT setup, 'What to set?' AS question, cell, CASE is_ WHEN 'higher' THEN 'Graphs' WHEN 'lower' THEN '--enforce-eager' ELSE 'No advice yet between graphs and eager' END || CASE WHEN provisional THEN ', provisionally' ELSE '' END
           || CASE is_ WHEN 'higher' THEN ': ' ELSE ': graphs have ' END || times || ' times the output tokens/s of eager' || resolved || CASE WHEN provisional THEN ', but ' || without_stalls || ', less than half of it' ELSE '' END || '.' AS answer FROM flag
), trimmed AS (
    SELECT t.setup, 'What to set?', t.cell, CASE WHEN t.n < 3 THEN 'No advice yet, on fewer than three blocks, on trimming the captured sizes' WHEN t.is_ = 'lower' THEN 'With graphs, no advice to trim the captured sizes'
                ELSE 'With graphs, capture no more sizes than the concurrency needs, which leaves the KV cache more' END || ' (--max-cudagraph-capture-size, of the default sizes the least that holds the concurrency): ' || t.times || ' times graphs as they come'
           || CASE WHEN t.n >= 3 AND t.is_ = 'not resolved' THEN ', so that no loss showed' ELSE t.resolved END || coalesce('; ' || v.times || ' times eager' || v.resolved || coalesce(', ' || v.without_stalls, ''), '') || '.'
    FROM cells t LEFT JOIN cells v ON (v.setup, v.cell, v.arm_a, v.arm_b) = (t.setup, t.cell, 'graphs_trimmed', 'eager') WHERE (t.arm_a, t.arm_b) = ('graphs_trimmed', 'graphs')
    UNION ALL SELECT DISTINCT setup, 'What to set?', 'all', 'Trimmed captures are not measured: needs the arm graphs_trimmed (suite mechanism).' FROM cells WHERE setup NOT IN (SELECT setup FROM cells WHERE arm_a = 'graphs_trimmed')
),
-- What eager costs, and what the runs behind that figure were like
cost AS (
    SELECT c.setup, 'What does --enforce-eager cost?', cell, 'Output tokens/s against graphs and torch.compile: ' || change || coalesce('; ' || without_stalls, '') || '.'
           || coalesce(' Warnings: ' || (SELECT string_agg(arm || ' ' || warnings, '; ' ORDER BY arm) FROM cell_warnings w WHERE (w.setup, w.model, w.profile) = (c.setup, c.model, c.profile) AND arm IN ('graphs', 'eager')) || '.', '')
           || CASE WHEN s.slow > 0 THEN ' Slow throughout (over 1.2 times the 10th percentile of their like, in over 80% of the time of their decode steps): ' || s.slow || ' of ' || s.runs || ' eager runs.' ELSE '' END
           || CASE WHEN without_stalls IS NOT NULL AND s.in_limit = 1 AND s.runs > 1 THEN ' What is computed takes the pace of one eager run for all.' ELSE '' END
    FROM cells c LEFT JOIN slow_throughout s ON (s.setup, s.model, s.profile, s.arm) = (c.setup, c.model, c.profile, 'eager') WHERE (arm_a, arm_b) = ('eager', 'graphs')
), beside AS (
    SELECT setup, 'What does --enforce-eager cost?', 'all', CASE WHEN count(*) FILTER (share > 0.1) > 0 THEN count(*) FILTER (share > 0.1) || ' of these ' || count(*) || ' runs were beside another GPU at work (over a tenth of the load window). ' ELSE '' END
           || 'All were with step trace and GPU samples, whose own cost is a table below.' FROM flag_runs GROUP BY setup
),
-- What eager buys: the start, the first token, and how long that lasts
start AS (
    SELECT setup, 'What does it buy?', model, CASE is_ WHEN 'higher' THEN 'A warm start shorter by ' WHEN 'lower' THEN 'A warm start longer, graphs less eager ' ELSE 'A warm start, graphs less eager ' END || replace(estimate_text(difference), ' (n', ' s (n') || resolved || '.'
           || coalesce(' Starts that should be alike, whatever the load and the KV pool: ' || (SELECT string_agg(arm || ' ' || starts, '; ' ORDER BY arm) FROM like_starts l WHERE (l.setup, l.model) = (e.setup, e.model) AND arm IN ('graphs', 'eager') AND n > 1) || '; where they differ much, the difference is as uncertain.', '')
    FROM e WHERE metric = 'start_s' AND profile = '(all)' AND (arm_a, arm_b) = ('graphs', 'eager')
), repays AS (
    SELECT setup, model || ' ' || profile AS cell, arm, 'repay their start, ' || replace(estimate_text(extra), ' (n', ' s (n') || ' longer in these blocks, after ' || requests_text(requests) || coalesce(' [' || requests_text(fewest) || ', ' || requests_text(most) || ']', '') || ' requests'
           || coalesce(', computed without the host''s stalls ' || requests_text(calm_requests) || ' (' || requests_text(calm_range[1]) || ' to ' || requests_text(calm_range[3]) || ' by the three rules)', '') || '.' AS text FROM break_evens
), first_token AS (
    SELECT setup, 'What does it buy?', cell, 'Mean time to first token with eager: ' || change || coalesce('; of the whole request: ' || (SELECT l.change FROM e l WHERE l.metric = 'latency_ms' AND (l.setup, l.cell, l.arm_a, l.arm_b) = (e.setup, e.cell, 'eager', 'graphs')), '') || '.' || coalesce((SELECT ' Graphs ' || text FROM repays r WHERE (r.setup, r.cell, r.arm) = (e.setup, e.cell, 'graphs')), '')
           || coalesce((SELECT ' Trimmed graphs ' || text FROM repays r WHERE (r.setup, r.cell, r.arm) = (e.setup, e.cell, 'graphs_trimmed')), '')
    FROM e WHERE metric = 'ttft_ms' AND profile <> '(all)' AND (arm_a, arm_b) = ('eager', 'graphs')
),
-- What takes from graphs: the KV pool, then what is left in all
memory AS (
    SELECT DISTINCT setup, 'What can make graphs lose?', model, 'vLLM takes the memory of graphs out of the KV cache: ' || graphs::BIGINT || ' KV blocks instead of ' || eager::BIGINT || '. A pool holds whole requests, so what that costs comes in steps and depends on their lengths.'
    FROM pool JOIN blocks USING (setup, model)
), more_steps AS (  -- where the pool bounds the load: where the scheduling model has other steps for it
    SELECT setup, 'What can make graphs lose?', cell, 'Engine steps while requests wait, graphs with their pool against eager with its own: ' || change || ', by the scheduling model ' || pct_text(steps_ratio) || '%.'
    FROM e JOIN model_ratios USING (setup, model, profile) WHERE metric = 'steps' AND (arm_a, arm_b) = ('graphs', 'eager') AND steps_ratio <> 1
), smaller AS (
    SELECT p.setup, 'What can make graphs lose?', p.cell, 'The smaller pool, together with the change in padding that comes with it: output tokens/s ' || p.change || coalesce('; ' || p.without_stalls, '') || '.' || coalesce(' The same two pools without graphs, so without padding: ' || b.change || coalesce('; ' || b.without_stalls, '') || '.', '')
           || coalesce(' Padding while requests wait, of the steps that run as one whole graph (FULL): ' || own.pct || ', with eager''s pool ' || matched.pct || '.', '') || CASE WHEN u.cell IS NULL THEN ' Pool and padding are not separated: open until graphs_unpadded is measured.' ELSE '' END
    FROM pool p LEFT JOIN cells b ON (b.setup, b.cell, b.arm_a, b.arm_b) = (p.setup, p.cell, 'eager_kv_matched', 'eager') LEFT JOIN unpadded u ON (u.setup, u.cell) = (p.setup, p.cell)
    LEFT JOIN padding own ON (own.setup, own.cell, own.arm) = (p.setup, p.cell, 'graphs') LEFT JOIN padding matched ON (matched.setup, matched.cell, matched.arm) = (p.setup, p.cell, 'graphs_kv_matched')
), in_all AS (
    SELECT p.setup, 'What can make graphs lose?', p.cell, 'In all, graphs against eager: ' || f.change || coalesce('; ' || f.without_stalls, '')
           || CASE WHEN f.is_ = 'lower' THEN '. So graphs lost.' WHEN f.is_ = 'higher' THEN '. So graphs did not lose.' WHEN f.ratio.mean >= 1 THEN '. So graphs did not lose in what was measured.' ELSE '. So graphs were slower in what was measured.' END
           || coalesce(' With equal pools: ' || k.change || coalesce('; ' || k.without_stalls, '') || '.', '')
    FROM pool p JOIN flag f ON (f.setup, f.cell) = (p.setup, p.cell) LEFT JOIN cells k ON (k.setup, k.cell, k.arm_a, k.arm_b) = (p.setup, p.cell, 'graphs_kv_matched', 'eager')
),
study AS (
    SELECT t.setup, 'Why did they lose in the study?', t.cell, format('Computed from its own figures: its pool with graphs was {:.1f}% smaller ({} KV blocks for {}), for which the scheduling model needs {:+.1f}% engine steps while requests wait ({} for {}). Prefill aside, graphs then win only if a step is over {:.1f}% shorter. There it was {:.2f}% shorter, at one request at a time: {:+.1f}% decode time, diluted by what prefill takes; it measured {:+.2f}% output tokens/s.',
               100 * (1 - blocks[1] / blocks[2]), blocks[1], blocks[2], 100 * (m.steps[1] / m.steps[2] - 1), m.steps[1], m.steps[2], 100 * (1 - m.steps[2] / m.steps[1]), gain, 100 * (m.steps[1] / m.steps[2] * (1 - gain / 100) - 1), pub('throughput', '32b', 'sustained', 'change_pct'))
           || coalesce(' Here, with equal pools and ' || h.decoding || ' requests decoding, graphs change a decode step by ' || change_text(h.quiet) || ' while the host is quiet (a run''s 10th percentile of five in a row; ' || format('{:+.1f}%', h.least) || ' between the least of each arm), and by ' || change_text(h.middle) || ' in the median.', '')
    FROM flag t LEFT JOIN steps_here h USING (setup), published_pools, (SELECT pub('tpot_ms', '32b', 'sporadic', 'gain_pct') AS gain), (SELECT list(steps ORDER BY kv_blocks) AS steps FROM model_steps WHERE setup = 'published study') m
    WHERE t.cell = '32b sustained' AND len(m.steps) = 2
),
padded AS (
    SELECT setup, 'Is it padding to captured sizes?', cell, 'Without padding, with the same pool and nearly the same steps: output tokens/s ' || change || '.' FROM unpadded
    UNION ALL SELECT DISTINCT setup, 'Is it padding to captured sizes?', 'all', 'Not measured: needs the arm graphs_unpadded (suite mechanism).' FROM cells WHERE setup NOT IN (SELECT setup FROM unpadded)
)
SELECT setup, question, cell, answer FROM (
    SELECT *, 10 AS place FROM which UNION ALL SELECT *, 11 FROM trimmed UNION ALL SELECT *, 20 FROM cost UNION ALL SELECT *, 30 FROM beside UNION ALL SELECT *, 40 FROM start UNION ALL SELECT *, 50 FROM first_token
    UNION ALL SELECT *, 60 FROM memory UNION ALL SELECT *, 61 FROM more_steps UNION ALL SELECT *, 62 FROM smaller UNION ALL SELECT *, 63 FROM in_all UNION ALL SELECT *, 70 FROM study UNION ALL SELECT *, 80 FROM padded
) ORDER BY setup, place // 10, cell, place;
