-- title: KV pool and graph memory
-- note: vLLM subtracts an estimate of graph memory from the KV cache of arms with graphs only. Natural blocks: what profiling found; in effect: after any override. Block tokens: as /metrics told; assumed where it did not. Ranges where runs differ.
SELECT setup, model, arm, count(*) AS runs,
       CASE WHEN bool_and(cudagraph_mode = 'NONE') THEN 'no graphs' ELSE span_text(min(d2(estimated_graph_gib)), max(d2(estimated_graph_gib))) END AS graphs_estimated_gib,
       CASE WHEN bool_and(cudagraph_mode = 'NONE') THEN 'no graphs' ELSE span_text(min(d2(coalesce(graph_pool_actual_gib, capture_gib))), max(d2(coalesce(graph_pool_actual_gib, capture_gib)))) END AS graphs_actual_gib,
       span_text(min(d2(available_kv_gib)), max(d2(available_kv_gib))) AS available_kv_gib,
       span_text(min(num_gpu_blocks_natural), max(num_gpu_blocks_natural)) AS blocks_natural,
       span_text(min(num_gpu_blocks), max(num_gpu_blocks)) AS blocks_in_effect,
       coalesce(span_text(min(kv_block_tokens), max(kv_block_tokens)), '16, assumed') AS block_tokens,
       span_text(min(kv_tokens), max(kv_tokens)) AS kv_tokens,
       span_text(min(d2(max_concurrency)), max(d2(max_concurrency))) AS max_concurrency
FROM runs WHERE counted AND kind = 'run' GROUP BY setup, model, arm ORDER BY ALL;
