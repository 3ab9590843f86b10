-- title: Break-even: requests until a longer start is repaid
-- part: When it pays, and what to set
-- note: Extra start over saving a request, both against eager and paired by block. A request's time is the window over its requests: at concurrency 1 the latency, at 64 its share of the throughput. Fewest and most: Fieller's 95% interval for the quotient; never: the arm saves nothing, or the data does not exclude that it saves nothing. One block has no interval. Without stalls: the quotient with the saving computed without the host's stalls (table of that name), and least and greatest by its three rules. Warm starts only. Starts alike: least and greatest warm start of the arm, whatever the load and the KV pool: where they are far apart, so much of the extra start is chance.
-- chart: break_even
-- empty: Needs blocks with eager and another arm, both started warm.
SELECT b.setup, b.model, profile, b.arm, f2(extra) AS extra_start_s, f2(scaled(saving, 1000)) AS saving_a_request_ms,
       requests_text(requests) AS break_even_requests, coalesce(requests_text(fewest), 'one block') AS fewest, coalesce(requests_text(most), 'one block') AS most, requests_text(calm_requests) || ' (' || requests_text(calm_range[1]) || ' to ' || requests_text(calm_range[3]) || ')' AS without_stalls, starts AS starts_alike
FROM break_evens b LEFT JOIN like_starts s ON (s.setup, s.model, s.arm) = (b.setup, b.model, replace(b.arm, '_kv_matched', '')) ORDER BY b.setup, b.model, profile, b.arm;
