-- title: What the instruments cost
-- note: Output tokens per second with step trace, --cudagraph-metrics and GPU samples against without them, all else equal, paired by block, on against off. On first: pairs in which the run with them came first. Lost: per cent of the throughput without them. At most 1%: the whole interval lies at or below 1%, with four pairs or more. It holds for this cell: mean step is the window over all its steps, those with prompts too; the same milliseconds are a larger share of shorter steps, and an arm that waits for the host's CPU may lose more.
-- empty: Not measured: needs the suite overhead.
WITH arms AS (SELECT a.key AS arm, a.value ->> '$.flags' AS flags FROM campaign, json_each(configuration -> '$.arms') a),
pairs AS (
    SELECT setup, model, profile, a.arm AS with_instruments, b.arm AS without_them, a.bench_output_tok_s AS on_tok_s, b.bench_output_tok_s AS off_tok_s, 1e3 * a.bench_duration_s / s.steps AS step_ms,
           ln(a.bench_output_tok_s / b.bench_output_tok_s) AS log_ratio, a.order_in_block < b.order_in_block AS on_first, a.repetition, a.pass_number
    FROM runs a JOIN runs b USING (setup, model, profile, pair_id) JOIN arms x ON x.arm = a.arm JOIN arms y ON y.arm = b.arm AND y.flags = x.flags
    LEFT JOIN (SELECT folder, count(*) AS steps FROM window_steps GROUP BY folder) s ON s.folder = a.folder
    WHERE a.counted AND b.counted AND a.kind = 'run' AND a.instruments AND NOT b.instruments
), means AS (
    SELECT setup, model, profile, with_instruments, without_them, avg(on_tok_s) AS on_tok_s, avg(off_tok_s) AS off_tok_s, avg(step_ms) AS step_ms, mean95(log_ratio) AS l, count(*) FILTER (on_first) AS on_first,
           list(d2(100 * (1 - exp(log_ratio))) ORDER BY repetition, pass_number) AS points_pct
    FROM pairs GROUP BY ALL
), lost AS (SELECT *, struct_pack(mean := 100 * (1 - exp(l.mean)), lo := 100 * (1 - exp(l.hi)), hi := 100 * (1 - exp(l.lo)), n := l.n) AS pct FROM means)
SELECT setup, model, profile, with_instruments, without_them, on_first, d1(on_tok_s) AS on_tok_s, d1(off_tok_s) AS off_tok_s, d1(step_ms) AS mean_step_ms, f2(pct) AS lost_pct,
       CASE WHEN l.n < 4 THEN 'not resolved: ' || l.n || ' of 4 pairs' WHEN pct.hi <= 1 THEN 'at most 1%' WHEN pct.lo > 1 THEN 'more than 1%' ELSE 'not resolved' END AS verdict, points_pct
FROM lost ORDER BY ALL;
