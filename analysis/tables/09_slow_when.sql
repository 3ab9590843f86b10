-- title: Were steps without graphs slow because of the neighbour?
-- note: Runs of the arms without graphs (eager, with its pool or another, and compile_only), by what a run on another GPU of the same host did at the moment. Slow: share of the time of their decode steps, five in a row, in fives that took more than 1.2 times the 10th percentile of their like in the cell and arm (20 or more at that number of decoding requests); with the seconds that it is a share of, and in how many runs (with 4 s or more of it). An engine starts: from the server's start until it answers, compilation and capture included. Of the plain loop's runs only starts are known, of the sweep's neither: all else of theirs counts as the rest of a run. The columns are of different runs, machines and moments; starts less loads compares within a run: slow share while an engine starts less that beside a load with graphs, in points, of each run that has both. Other virtual machines of the host are not seen.
-- empty: Not measured: no counted run without graphs has a step trace.
WITH fives AS (
    SELECT folder, t_ns, ms, is_slow FROM paced_fives WHERE graphless
), beside AS (
    SELECT f.folder, f.t_ns, min(CASE WHEN f.t_ns BETWEEN exec_ns AND started_ns THEN 1 WHEN f.t_ns BETWEEN w0 AND w1 THEN if(graphless, 3, 2) ELSE 4 END) AS doing
    FROM fives f JOIN neighbours n USING (folder) JOIN at_work a ON a.name = n.neighbour
    WHERE f.t_ns >= n.from_ns AND f.t_ns < n.from_ns + n.shared_s * 1e9 GROUP BY ALL
), shares AS (
    SELECT setup, model, profile, arm, folder, repetition, coalesce(doing, 5) AS doing, 5 * sum(ms) / 1e3 AS decode_s, 5 * coalesce(sum(ms) FILTER (is_slow), 0) / 1e3 AS slow_s
    FROM fives LEFT JOIN beside USING (folder, t_ns) JOIN runs USING (folder) GROUP BY ALL HAVING decode_s >= 4
), told AS (
    SELECT setup, model, profile, arm, map_from_entries(list((doing, pct))) AS told
    FROM (SELECT setup, model, profile, arm, doing, d0(100 * sum(slow_s) / sum(decode_s)) || '% of ' || d0(sum(decode_s)) || ' s (' || count(*) || ')' AS pct FROM shares GROUP BY ALL) GROUP BY ALL
), differences AS (
    SELECT setup, model, profile, arm, list(d0(less) ORDER BY repetition, folder) AS points
    FROM (SELECT setup, model, profile, arm, folder, repetition, 100 * (max(slow_s / decode_s) FILTER (doing = 1) - max(slow_s / decode_s) FILTER (doing = 2)) AS less FROM shares GROUP BY ALL) WHERE less IS NOT NULL GROUP BY ALL
)
SELECT setup, model, profile, arm, coalesce(told[1], 'not seen') AS slow_while_an_engine_starts, coalesce(told[2], 'not seen') AS beside_a_load_with_graphs, coalesce(told[3], 'not seen') AS beside_a_load_without,
       coalesce(told[4], 'not seen') AS beside_the_rest_of_a_run, coalesce(told[5], 'not seen') AS beside_nothing, coalesce(points::VARCHAR, 'not seen') AS starts_less_loads
FROM told LEFT JOIN differences USING (setup, model, profile, arm) ORDER BY ALL;
