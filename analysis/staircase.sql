-- The loads that the scheduling model is asked about, with the counts of KV blocks: of every measured cell with several clients
-- (`curve`: more counts around them), and of the published study at the pools that its figures imply.
SELECT setup, model, profile, block_tokens(kv_block_tokens) AS tokens, true AS curve,
       any_value(concurrency), any_value(max_model_len), any_value(max_num_batched_tokens),
       list(DISTINCT num_gpu_blocks ORDER BY num_gpu_blocks), any_value(lengths ORDER BY repetition, folder)
FROM runs JOIN run_figures USING (folder)
JOIN (
    SELECT folder, list((q.input_tokens, q.output_tokens) ORDER BY request) AS lengths
    FROM requests q GROUP BY folder
) USING (folder)
WHERE steps IS NOT NULL AND num_gpu_blocks IS NOT NULL AND concurrency > 1 GROUP BY ALL
UNION ALL SELECT 'published study', '32b', 'sustained', 16, false, 64, 4096, 8192, blocks,
       list_transform(range(500), lambda i: (1024, 128)) FROM published_pools
ORDER BY ALL;
