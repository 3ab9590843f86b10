-- title: Engine steps while requests wait
-- part: Steps and KV blocks
-- note: Steps while requests wait: those with a token count from the first step with a waiting request to the last token. In the window: all of the load, from its first request on. Where the KV pool is overloaded their number depends on the pool, not on how a step is executed; where it is not, requests wait only for their turn to be read in, and the number depends on when they arrive. Points, mean running and preempted: of the steps while requests wait; running is one step ahead of the token columns.
-- chart: steps
-- empty: No request ever waited, or no step trace.
SELECT setup, model, profile, arm, f0(any_value(estimate) FILTER (metric = 'kv_blocks')) AS kv_blocks, f0(any_value(estimate) FILTER (metric = 'steps')) AS steps_while_requests_wait,
       list_transform(any_value(points) FILTER (metric = 'steps'), lambda x: d0(x)) AS points, f0(any_value(w.steps)) AS steps_in_the_window,
       f1(any_value(estimate) FILTER (metric = 'mean_running')) AS mean_running, f1(any_value(estimate) FILTER (metric = 'preempted')) AS preempted
FROM estimates LEFT JOIN (
    SELECT setup, model, profile, arm, mean95(steps) AS steps FROM (SELECT setup, model, profile, arm, folder, count(unpadded_tokens) AS steps FROM window_steps GROUP BY ALL) GROUP BY ALL
) w USING (setup, model, profile, arm)
WHERE metric IN ('kv_blocks', 'steps', 'mean_running', 'preempted') AND profile <> '(all)'
GROUP BY setup, model, profile, arm HAVING count(*) FILTER (metric = 'steps') > 0 ORDER BY setup, model, profile, arm;
