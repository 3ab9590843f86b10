-- title: Order within a block
-- note: Does it matter whether an arm runs first or last? Output tokens/s of a run less the mean of its cell and arm, in percent, by its place in the block (from 0). Arms with one run tell nothing and are left out; an arm that always had the same place could not be told from it.
-- empty: Needs cells with two runs an arm.
WITH rests AS (
    SELECT setup, model, profile, order_in_block, 100 * (ln(bench_output_tok_s) - avg(ln(bench_output_tok_s)) OVER cell) AS rest, count(*) OVER cell AS n
    FROM runs WHERE counted AND kind = 'run' AND bench_output_tok_s > 0 AND len(block_arms) > 1 WINDOW cell AS (PARTITION BY setup, model, profile, arm)
)
SELECT setup, model, profile, order_in_block AS place_in_block, f2(mean95(rest)) AS above_the_arms_mean_pct FROM rests WHERE n > 1 GROUP BY ALL ORDER BY ALL;
