-- title: What the other GPU did while steps without graphs were slow
-- note: Five decode steps in a row of the arms without graphs (eager, with its pool or another, and compile_only), sorted by what a run on another GPU of the same host did at that moment, over all arms of the cell. Over the usual: their time over that of as many at the 10th percentile of their like in the cell and arm (20 or more at that number of decoding requests). Slow: share of their time in fives that took more than 1.2 times that. An engine starts: from the server's start until it answers, compilation and capture included. If the neighbour were the cause, the rows would differ, and beside nothing no step would be slow. Other virtual machines of the host are not seen.
-- empty: Not measured: no counted run without graphs has a step trace.
WITH fives AS (
    SELECT folder, setup, model, profile, t_ns, ms, ms / q[2] AS over_usual
    FROM decode_fives JOIN usual_steps USING (setup, model, profile, arm, decoding) JOIN (SELECT folder FROM runs WHERE cudagraph_mode = 'NONE' AND gpu_uuid IS NOT NULL) USING (folder)
), beside AS (
    SELECT f.folder, f.t_ns, min(CASE WHEN f.t_ns BETWEEN exec_ns AND coalesce(healthy_ns, exited_ns) THEN 1
                                      WHEN f.t_ns BETWEEN window_begin_ns AND window_end_ns THEN if(cudagraph_mode = 'NONE', 3, 2) ELSE 4 END) AS doing
    FROM fives f JOIN neighbours n USING (folder) JOIN attempts a ON a.folder = n.neighbour
    WHERE f.t_ns >= n.from_ns AND f.t_ns < n.from_ns + n.shared_s * 1e9 GROUP BY ALL
)
SELECT setup, model, profile, ['an engine starts', 'a load with graphs', 'a load without graphs', 'the rest of a run', 'nothing'][coalesce(doing, 5)] AS on_the_other_gpu, count(DISTINCT folder) AS runs,
       d0(5 * sum(ms) / 1e3) AS decode_s, d2(sum(ms) / sum(ms / over_usual)) AS over_the_usual, d0(100 * coalesce(sum(ms) FILTER (over_usual > 1.2), 0) / sum(ms)) AS slow_pct
FROM fives LEFT JOIN beside USING (folder, t_ns) GROUP BY setup, model, profile, doing ORDER BY setup, model, profile, doing;
