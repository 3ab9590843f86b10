-- title: Runs set aside, and why
-- note: None of these enters a figure. A pass of a block counts only whole: every arm valid, on one machine and GPU.
-- empty: Every run counts.
SELECT kind, r.folder, set_aside AS why, coalesce(failure_message, '') AS message,
       coalesce((SELECT string_agg(code || ': ' || evidence, '; ' ORDER BY code, evidence) FROM reasons s WHERE s.folder = r.folder), '') AS evidence
FROM runs r WHERE NOT counted
UNION ALL SELECT 'unreadable', folder, 'unreadable', problem, '' FROM unreadable
ORDER BY ALL;
