-- title: All runs
-- note: Every attempt on record, counted or not, primes included. Reasons: a warning's with its evidence, or with the size alone where it names one in per cent (campaign validate has the words). Window shared: seconds of the load window in which another run or prime of this database, or a run of the plain loop or the sweep, was active on the same machine, on another GPU; beside: which, and for how many seconds of the whole run.
SELECT folder, kind, setup, sitting_id AS sitting, status, CASE WHEN counted THEN 'yes' ELSE 'no' END AS counted, coalesce(set_aside, '') AS why_not,
       coalesce((SELECT string_agg(code || ' (' || coalesce(nullif(regexp_extract(evidence, '\((\+\d+%)\)$', 1), ''), severity || CASE WHEN severity = 'warning' AND evidence <> '' THEN ': ' || evidence ELSE '' END) || ')', ', ' ORDER BY code) FROM reasons s WHERE s.folder = r.folder), '') AS reasons,
       coalesce(order_in_block::VARCHAR, '') AS order_in_block, d2(seconds(exec_ns, healthy_ns)) AS start_s, d1(bench_output_tok_s) AS output_tok_s, d1(bench_duration_s) AS duration_s,
       bench_completed AS completed, bench_failed AS failed, num_gpu_blocks AS kv_blocks, left(wall_start, 19) AS started_utc,
       CASE WHEN window_begin_ns IS NULL OR window_end_ns IS NULL THEN '' WHEN gpu_uuid IS NOT NULL THEN d1(coalesce((SELECT sum(window_s) FROM neighbours s WHERE s.folder = r.folder), 0))::VARCHAR END AS window_shared_s,
       coalesce((SELECT string_agg(neighbour || ' (' || d1(shared_s) || ' s)', ', ' ORDER BY from_ns, neighbour) FROM neighbours s WHERE s.folder = r.folder), '') AS beside
FROM runs r ORDER BY kind DESC, folder;
