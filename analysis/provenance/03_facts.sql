-- title: All facts
-- note: Of each part, first the facts on which all sittings agree. The engine's image is named only where a container ran it. Paths are those of the machine that measured.
-- empty: No provenance on record.
WITH leaves AS (
    SELECT sitting_id, key, coalesce(value, 'not reported') AS value, regexp_extract(key, '^(.*\.packages)\.(.+)$', ['fact', 'name']) AS package,
           regexp_extract(key, '^(.*files\..+)\.(bytes|sha256)$', ['fact', 'name']) AS file
    FROM sitting_facts WHERE NOT starts_with(key, 'must_agree.') AND key NOT IN ('collected', 'schema_version')
), facts AS (
    SELECT sitting_id, coalesce(nullif(package.fact, ''), nullif(file.fact, ''), key) AS fact, string_agg(trim(package.name || file.name || ' ' || value), ', ' ORDER BY key) AS value
    FROM leaves GROUP BY ALL
), used AS (
    SELECT n, fact, value FROM facts JOIN (SELECT sitting_id, row_number() OVER (ORDER BY sitting_id) AS n, provenance ->> '$.engine.launcher' AS launcher FROM sittings) USING (sitting_id)
    WHERE fact <> 'engine.image' OR launcher IS DISTINCT FROM 'process'
)
SELECT fact, value, CASE WHEN count(*) = (SELECT count(*) FROM sittings) THEN 'all' ELSE string_agg('S' || n, ', ' ORDER BY n) END AS sittings
FROM used GROUP BY fact, value ORDER BY split_part(fact, '.', 1), count(*) < (SELECT count(*) FROM sittings), fact, min(n);
