-- title: One value a machine
-- note: Blocks of one machine share its host, neighbours and GPUs, so that several may be alike without saying more. Here each machine (one boot) counts once, with the mean over its blocks (of a ratio the geometric one): graphs over eager in output tokens/s, and how much longer graphs take to start, warm, whatever the load; and in what share of the time of their decode steps its eager runs (of the model, where it says all) were slow, over 1.2 times the 10th percentile of their like. n counts machines; blocks are those of each machine, in the order of the sittings. Where this interval is about as narrow as the one over blocks, that one does not owe its width to blocks of one machine being alike; with one block a machine both are the same.
-- empty: Needs blocks with graphs and eager.
WITH places AS (
    SELECT DISTINCT setup, pair_id, machine_id, min(wall_start) OVER (PARTITION BY machine_id) AS first FROM runs WHERE counted AND kind = 'run'
), machines AS (
    SELECT setup, metric, model, profile, machine_id, first, avg(CASE WHEN a.value > 0 AND b.value > 0 THEN ln(a.value / b.value) END) AS l, avg(a.value - b.value) AS difference, count(*) AS blocks
    FROM run_values a JOIN run_values b USING (setup, metric, model, profile, pair_id) JOIN places USING (setup, pair_id)
    WHERE a.arm = 'graphs' AND b.arm = 'eager' AND metric = CASE profile WHEN '(all)' THEN 'start_s' ELSE 'output_tok_s' END GROUP BY ALL
), slow AS (
    SELECT setup, model, coalesce(profile, '(all)') AS profile, machine_id, 100 * coalesce(sum(ms) FILTER (is_slow), 0) / sum(ms) AS slow_pct FROM paced_fives WHERE arm = 'eager' GROUP BY GROUPING SETS ((setup, model, profile, machine_id), (setup, model, machine_id))
), means AS (
    SELECT setup, model, profile, metric, list(d0(slow_pct) ORDER BY first, machine_id) AS slow_pct, list(blocks ORDER BY first, machine_id) AS blocks, mean95(l) AS l, mean95(difference) AS difference, list(exp(l) ORDER BY first, machine_id) AS points FROM machines LEFT JOIN slow USING (setup, model, profile, machine_id) GROUP BY ALL
), ratios AS (
    SELECT *, exp_of(l) AS ratio FROM means
)
SELECT setup, model, profile, any_value(blocks) AS blocks, any_value(f3(ratio)) FILTER (metric = 'output_tok_s') AS graphs_over_eager,
       list_transform(any_value(points) FILTER (metric = 'output_tok_s'), lambda p: d3(p)) AS points, any_value(f2(difference)) FILTER (metric = 'start_s') AS start_difference_s, any_value(slow_pct) AS eager_slow_pct
FROM ratios GROUP BY setup, model, profile ORDER BY ALL;
