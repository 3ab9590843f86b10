-- title: Were steps without graphs slow because of the neighbour?
-- note: Each run of an arm without graphs (eager, with its pool or another, and compile_only), by what a run on another GPU of the same host did at the moment. Slow: share of the time of its decode steps, five in a row, in fives that took more than 1.2 times the 10th percentile of their like in the cell and arm (20 or more at that number of decoding requests); each with the seconds that it is a share of, none under 4 s. An engine starts: from the server's start until it answers, compilation and capture included. Compare within a row: rows differ in machine and moment. Starts less loads: slow share while an engine starts less that beside a load with graphs, in points. Other virtual machines of the host are not seen.
-- empty: Not measured: no counted run without graphs has a step trace.
WITH fives AS (
    SELECT folder, t_ns, ms, ms / q[2] > 1.2 AS is_slow
    FROM decode_fives JOIN usual_steps USING (setup, model, profile, arm, decoding) JOIN (SELECT folder FROM runs WHERE cudagraph_mode = 'NONE' AND gpu_uuid IS NOT NULL) USING (folder)
), beside AS (
    SELECT f.folder, f.t_ns, min(CASE WHEN f.t_ns BETWEEN exec_ns AND coalesce(healthy_ns, exited_ns) THEN 1
                                      WHEN f.t_ns BETWEEN window_begin_ns AND window_end_ns THEN if(cudagraph_mode = 'NONE', 3, 2) ELSE 4 END) AS doing
    FROM fives f JOIN neighbours n USING (folder) JOIN attempts a ON a.folder = n.neighbour
    WHERE f.t_ns >= n.from_ns AND f.t_ns < n.from_ns + n.shared_s * 1e9 GROUP BY ALL
), shares AS (
    SELECT folder, coalesce(doing, 5) AS doing, 5 * sum(ms) / 1e3 AS decode_s, 100 * coalesce(sum(ms) FILTER (is_slow), 0) / sum(ms) AS pct
    FROM fives LEFT JOIN beside USING (folder, t_ns) GROUP BY ALL HAVING 5 * sum(ms) / 1e3 >= 4
), told AS (
    SELECT folder, map_from_entries(list((doing, d0(pct) || '% of ' || d0(decode_s) || ' s'))) AS told, map_from_entries(list((doing, pct))) AS pct FROM shares GROUP BY folder
)
SELECT setup, model, profile, arm, folder AS run, coalesce(told[1], 'not seen') AS slow_while_an_engine_starts, coalesce(told[2], 'not seen') AS beside_a_load_with_graphs, coalesce(told[3], 'not seen') AS beside_a_load_without,
       coalesce(told[4], 'not seen') AS beside_the_rest_of_a_run, coalesce(told[5], 'not seen') AS beside_nothing, coalesce(d0(pct[1] - pct[2])::VARCHAR, 'not seen') AS starts_less_loads
FROM told JOIN runs USING (folder) ORDER BY setup, model, profile, arm, repetition, pass_number;
