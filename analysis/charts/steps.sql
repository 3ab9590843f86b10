-- title: Engine steps in the waiting span against KV blocks: every run, and the scheduling model (line)
-- kind: scatter
-- x: KV blocks
-- y: steps
-- x_axis: cut
-- y_axis: cut
SELECT setup, model, profile, arm, kv_blocks, steps, NULL AS lo, NULL AS hi, NULL AS n, FALSE AS hollow FROM run_figures JOIN runs USING (folder) WHERE steps IS NOT NULL AND kv_blocks IS NOT NULL
UNION ALL SELECT setup, model, profile, NULL, kv_blocks, steps, NULL, NULL, NULL, FALSE FROM model_steps WHERE steps IS NOT NULL AND setup IN (SELECT setup FROM runs)
ORDER BY setup, model, profile, arm NULLS FIRST, kv_blocks, steps;
