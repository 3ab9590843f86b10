-- title: Cold start, cold compile cache
-- note: The first start of an arm on a machine (a prime; the very first on a machine also reads the engine's files from disk), and any run whose log says that it compiled anew. Never pooled with warm starts. Arms that differ only in their KV pool share a prime. None: the arm has no such phase.
-- empty: No primes and no cold starts on record.
SELECT setup, model, arm, folder, coalesce(compile_cache, 'not reported') AS compile_cache, d2(start_s) AS to_health_s, d2(first_token_s) AS to_first_token_s,
       CASE WHEN compiles THEN d2(compile_s)::VARCHAR ELSE 'none' END AS torch_compile_s, CASE WHEN captures THEN d0(capture_s)::VARCHAR ELSE 'none' END AS capture_s, sitting_id AS sitting
FROM starts WHERE kind = 'prime' OR NOT warm ORDER BY setup, model, arm, folder;
