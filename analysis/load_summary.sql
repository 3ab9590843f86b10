-- What `campaign load` says of a database; lost: of its runs those that do not count, by reason and, of passes that are incomplete, by name.
WITH why AS (
    SELECT count(*) AS n, set_aside || CASE WHEN starts_with(set_aside, 'pass incomplete') THEN ' in ' || string_agg(DISTINCT pair_id, ', ' ORDER BY pair_id) ELSE '' END AS why
    FROM runs WHERE kind = 'run' AND NOT counted GROUP BY set_aside
), lost AS (
    SELECT 1 AS place, sum(n) || ' set aside: ' || array_to_string(list(n || ' ' || why ORDER BY n DESC, why)[:3], '; ') || CASE WHEN count(*) > 3 THEN '; …' ELSE '' END AS told
    FROM why HAVING count(*) > 0
    UNION ALL
    SELECT 2, count(*) || ' unreadable: ' || string_agg(folder, ', ' ORDER BY folder) FROM unreadable HAVING count(*) > 0
)
SELECT attempts, counted, primes, coalesce((SELECT string_agg(told, ', ' ORDER BY place) FROM lost), '') AS lost FROM summary
