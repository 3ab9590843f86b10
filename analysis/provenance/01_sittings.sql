-- title: Sittings
-- note: A sitting is one uninterrupted stretch on one machine; the files named here are sittings/<sitting>/provenance.json. Runs and primes: valid ones.
-- empty: No provenance on record.
SELECT 'S' || row_number() OVER (ORDER BY sitting_id) AS label, sitting_id AS sitting, provenance ->> '$.collected' AS begun_utc, coalesce(provenance ->> '$.gpu.uuid', 'none') AS gpu,
       coalesce(runs, 0) AS runs, coalesce(primes, 0) AS primes, coalesce(not_valid, 0) AS not_valid
FROM sittings LEFT JOIN (
    SELECT sitting_id, count(*) FILTER (kind = 'run' AND status = 'valid') AS runs, count(*) FILTER (kind = 'prime' AND status = 'valid') AS primes,
           count(*) FILTER (status <> 'valid') AS not_valid
    FROM attempts GROUP BY sitting_id
) USING (sitting_id) ORDER BY sitting_id;
