-- title: Running and waiting requests and the KV pool in use over the window, by step trace: a cell's first counted block
-- kind: lines
-- x: s from the window's begin
-- y: mean over 1/60 of the window
WITH binned AS (
    SELECT w.*, window_begin_ns AS begin_ns, window_end_ns AS end_ns, lead(t_ns) OVER (PARTITION BY folder ORDER BY step) - t_ns AS wait,
           floor(60 * (t_ns - begin_ns) / (end_ns - begin_ns)) AS bin
    FROM window_steps w JOIN runs USING (folder)
    WHERE concurrency > 1 AND pair_id = (SELECT min(pair_id) FROM runs r WHERE r.counted AND (r.setup, r.model, r.profile) = (w.setup, w.model, w.profile))
), means AS (
    SELECT setup, model, profile, arm, bin / 60 * seconds(begin_ns, end_ns) AS x, sum(running * wait) / sum(wait) AS running, sum(waiting * wait) / sum(wait) AS waiting, 100 * sum(kv_usage * wait) / sum(wait) AS kv
    FROM binned WHERE wait > 0 AND bin < 60 GROUP BY setup, model, profile, arm, bin, begin_ns, end_ns
)
SELECT setup, model, profile || ', ' || ['running requests', 'waiting requests', 'KV pool in use, %'][place] AS profile, arm, x, [running, waiting, kv][place] AS y
FROM means, generate_series(1, 3) AS g(place) WHERE y IS NOT NULL ORDER BY setup, model, means.profile, place, arm, x;
