-- title: Figures that may be unstable, and the next step
-- note: Throughput and warm-start effects against eager. Nothing is corrected for the number of comparisons; the last rows say how many were made and how many intervals would exclude 'no change' by chance alone.
-- empty: Nothing to compare yet, or every effect has five blocks and an interval within 2%.
WITH e AS (
    SELECT setup, model, profile, metric, arm_a, n, ratio, verdict, ratio.hi / ratio.lo - 1 AS width FROM effects
    WHERE arm_b = 'eager' AND ((metric = 'output_tok_s') OR (metric = 'start_s' AND profile = '(all)'))
), notes AS (
    SELECT *, list_filter([CASE WHEN n = 1 THEN 'one block: no interval' WHEN n < 5 THEN n || ' blocks of five' END, CASE WHEN width > 0.04 THEN '95% interval wider than 4%' END,
        CASE WHEN ratio.lo <= 1 AND ratio.hi >= 1 THEN 'not resolved: the interval holds 1' END], lambda x: x IS NOT NULL) AS why FROM e
)
SELECT setup, model, profile, metric AS figure, arm_a AS arm, f3(ratio) AS ratio_to_eager, 'may be unstable: ' || array_to_string(why, '; ') AS note,
       CASE WHEN n < 5 THEN 'complete the repetitions: campaign run --suite ' || CASE WHEN arm_a = 'graphs_kv_matched' AND engine = 'vllm' AND model = '32b' AND profile IN ('sustained', '(all)') THEN 'kv_tax'
                WHEN arm_a = 'graphs' AND profile IN ('sustained', 'sporadic', '(all)') THEN 'published' ELSE 'mechanism' END || ' --blocks ''' || model || CASE profile WHEN '(all)' THEN '' ELSE '.' || profile END || '.*'''
            WHEN verdict = 'not resolved' AND width <= 0.04 THEN 'none: smaller than this campaign resolves'
            ELSE 'see drift, order and sittings for a cause; else raise repetitions in campaign.toml' END AS next_step
FROM notes, (SELECT any_value(configuration ->> '$.engine.kind') AS engine FROM campaign) WHERE why <> []
UNION ALL
SELECT setup, 'all', 'all', 'all', 'all', NULL, count(*) || ' effects of three blocks or more, ' || count(*) FILTER (verdict <> 'not resolved') || ' of them resolved; about ' || round(count(*) * 0.05) || ' would be if nothing differed', 'read the effects that were named before measuring: throughput and start of graphs against eager'
FROM effects WHERE n >= 3 AND ratio IS NOT NULL AND arm_a < arm_b AND metric IN ('output_tok_s', 'tpot_ms', 'ttft_ms', 'start_s', 'first_token_s', 'steps', 'mean_running', 'tok_per_j', 'mean_power_w') GROUP BY setup
ORDER BY ALL;
