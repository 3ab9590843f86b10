-- title: What must agree
-- note: Runs of sittings that differ in one of these facts are never pooled or compared: each gets a setup of its own in the report.
-- empty: No provenance on record.
WITH labels AS (SELECT sitting_id, row_number() OVER (ORDER BY sitting_id) AS n FROM sittings),
facts AS (
    SELECT n, key AS fact, coalesce(value, 'not reported') AS value
    FROM labels CROSS JOIN (SELECT DISTINCT key[12:] AS key FROM sitting_facts WHERE starts_with(key, 'must_agree.')) LEFT JOIN sitting_facts USING (sitting_id, key)
)
SELECT fact, value, CASE WHEN count(*) = (SELECT count(*) FROM sittings) THEN 'all' ELSE string_agg('S' || n, ', ' ORDER BY n) END AS sittings
FROM facts GROUP BY fact, value ORDER BY fact, min(n);
