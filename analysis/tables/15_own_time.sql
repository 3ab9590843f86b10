-- title: The orchestrator's own time in a run
-- part: The data
-- note: Seconds, means over the runs of a cell, all arms together; the parts without interval. Own: the whole run less server start, probe, warm-up requests and window. To go: from the end of the probe to the go, mostly waiting for the client's prompts. Stop: SIGTERM to the GPU memory freed.
SELECT setup, model, profile, count(*) AS runs, d2(avg(total_s)) AS total_s, f2(mean95(own_s)) AS own_s, d2(max(own_s)) AS greatest_own_s,
       d2(avg(before_exec_s)) AS before_exec_s, d2(avg(to_probe_s)) AS to_probe_s, d2(avg(to_go_s)) AS to_go_s, d2(avg(client_end_s)) AS client_end_s,
       d2(avg(to_stop_s)) AS to_stop_s, d2(avg(stop_s)) AS stop_s, d2(avg(files_s)) AS files_s
FROM own_times JOIN runs USING (folder) GROUP BY setup, model, profile ORDER BY ALL;
