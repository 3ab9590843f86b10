-- title: Sittings and their machines
-- note: A sitting is one uninterrupted stretch on one machine. Facts that differ between sittings come first. Package lists are in the database (sitting_facts). The engine's image is named only where a container ran it.
-- empty: No provenance on record.
SELECT key AS fact, coalesce(value, 'not reported') AS value,
       CASE WHEN count(*) = any_value(n) THEN 'all ' || count(*) ELSE array_to_string(list(sitting_id ORDER BY sitting_id), ', ') END AS sittings
FROM sitting_facts, (SELECT count(*) AS n FROM sittings)
WHERE NOT contains(key, 'packages') AND NOT starts_with(key, 'must_agree.') AND key <> 'schema_version'
  AND (key <> 'engine.image' OR sitting_id NOT IN (SELECT sitting_id FROM sittings WHERE provenance ->> '$.engine.launcher' = 'process'))
GROUP BY key, value ORDER BY count(*) = any_value(n), key, value;
