-- title: Were two runs slow at the same moments?
-- note: Pairs of runs without graphs (eager, with its pool or another, and compile_only) on two GPUs of one host, over the clock seconds, 30 or more, in which both have five decode steps in a row. Slow: a second whose fives took more than 1.2 times the 10th percentile of their like on average. By chance: the product of both shares, what two runs that stall each on its own would show. Far above it, something holds up the whole host; near it, nothing seen here does. Few seconds, or shares near 100%, tell little.
-- empty: Not measured: no two runs without graphs, with a step trace, were under way on one host for 30 such seconds.
WITH pairs AS MATERIALIZED (
    SELECT DISTINCT folder, neighbour FROM neighbours WHERE folder < neighbour
), moments AS MATERIALIZED (
    SELECT folder, setup, t_ns // 1000000000 AS second, avg(pace) > 1.2 AS is_slow FROM paced_fives WHERE graphless AND folder IN (SELECT folder FROM pairs UNION SELECT neighbour FROM pairs) GROUP BY ALL
), own AS MATERIALIZED (  -- first by run: many runs can share a second
    SELECT neighbour, m.* FROM pairs JOIN moments m USING (folder)
)
SELECT a.setup, a.folder AS run, b.folder AS beside, count(*) AS seconds, d0(100 * avg(a.is_slow::INT)) AS slow_pct, d0(100 * avg(b.is_slow::INT)) AS beside_slow_pct,
       d0(100 * avg((a.is_slow AND b.is_slow)::INT)) AS both_pct, d0(100 * avg(a.is_slow::INT) * avg(b.is_slow::INT)) AS both_by_chance_pct
FROM own a JOIN moments b ON b.folder = a.neighbour AND b.second = a.second GROUP BY ALL HAVING count(*) >= 30 ORDER BY ALL;
