-- title: Order within a block
-- note: Does it matter whether an arm runs first or last? Output tokens/s of a run less the mean of its cell and arm, in percent, by its place in the block (from 0). Arms with fewer than three runs tell nothing and are left out, and so are those that always had the same place. Rests of an arm add up to zero, so that the interval is a little too narrow.
-- empty: Needs cells with three runs of an arm, at different places.
WITH rests AS (
    SELECT setup, model, profile, order_in_block, 100 * (ln(bench_output_tok_s) - avg(ln(bench_output_tok_s)) OVER cell) AS rest, count(*) OVER cell AS n, min(order_in_block) OVER cell < max(order_in_block) OVER cell AS moved
    FROM runs WHERE counted AND kind = 'run' AND bench_output_tok_s > 0 AND len(block_arms) > 1 WINDOW cell AS (PARTITION BY setup, model, profile, arm)
)
SELECT setup, model, profile, order_in_block AS place_in_block, f2(mean95(rest)) AS above_the_arms_mean_pct FROM rests WHERE n > 2 AND moved GROUP BY ALL ORDER BY ALL;
