-- title: Engine steps while requests wait against KV blocks: every run, and the scheduling model (line)
-- kind: scatter
-- x: KV blocks
-- y: steps while requests wait
-- x_axis: cut
-- y_axis: cut
WITH points AS (
    SELECT setup, model, profile, block_tokens(kv_block_tokens) AS size, arm, kv_blocks, steps FROM run_figures JOIN runs USING (folder) WHERE steps IS NOT NULL AND kv_blocks IS NOT NULL
    UNION ALL SELECT setup, model, profile, block_tokens, NULL, kv_blocks, steps FROM model_steps WHERE steps IS NOT NULL AND setup IN (SELECT setup FROM runs)
)
SELECT setup, model, profile || CASE size WHEN 16 THEN '' ELSE ', blocks of ' || size || ' tokens' END AS panel, arm, kv_blocks, steps, NULL AS lo, NULL AS hi, NULL AS n, FALSE AS hollow
FROM points ORDER BY setup, model, profile, size, arm NULLS FIRST, kv_blocks, steps;
