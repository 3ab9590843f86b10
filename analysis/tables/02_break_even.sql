-- title: Break-even: requests until a longer start is repaid
-- part: When it pays, and what to set
-- note: Extra start over saving a request, both against eager and paired by block. A request's time is the window over its requests: at concurrency 1 the latency, at 64 its share of the throughput. Fewest and most: Fieller's 95% interval for the quotient; never: the arm saves nothing, or the data does not exclude that it saves nothing. One block has no interval. Warm starts only.
-- chart: break_even
-- empty: Needs blocks with eager and another arm, both started warm.
SELECT setup, model, profile, arm, f2(extra) AS extra_start_s, f2(scaled(saving, 1000)) AS saving_a_request_ms,
       requests_text(requests) AS break_even_requests, coalesce(requests_text(fewest), 'one block') AS fewest, coalesce(requests_text(most), 'one block') AS most
FROM break_evens ORDER BY setup, model, profile, arm;
