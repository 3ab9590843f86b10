-- title: All runs
-- note: Every attempt on record, counted or not, primes included.
SELECT folder, kind, setup, sitting_id AS sitting, status, CASE WHEN counted THEN 'yes' ELSE 'no' END AS counted, coalesce(set_aside, '') AS why_not,
       coalesce((SELECT string_agg(code || ' (' || severity || ')', ', ' ORDER BY code) FROM reasons s WHERE s.folder = r.folder), '') AS reasons,
       coalesce(order_in_block::VARCHAR, '') AS order_in_block, d2(seconds(exec_ns, healthy_ns)) AS start_s, d1(bench_output_tok_s) AS output_tok_s, d1(bench_duration_s) AS duration_s,
       bench_completed AS completed, bench_failed AS failed, num_gpu_blocks AS kv_blocks, wall_start AS started_utc
FROM runs r ORDER BY kind DESC, folder;
