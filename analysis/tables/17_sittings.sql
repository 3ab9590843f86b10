-- title: Sittings and their machines
-- note: A sitting is one uninterrupted stretch on one machine. One row a fact that differs or agrees between sittings; package lists are in the database (sitting_facts).
-- empty: No provenance on record.
SELECT key AS fact, coalesce(value, 'not reported') AS value, list(sitting_id ORDER BY sitting_id) AS sittings
FROM sitting_facts WHERE NOT contains(key, 'packages') AND NOT starts_with(key, 'must_agree.') GROUP BY key, value ORDER BY key, value;
