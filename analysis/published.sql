-- The published study beside the data. Run once after views.sql; variables `published`, `claims`, `expected` hold the TOML files as JSON.

-- An estimate times k, and as text: three or four digits, 'never' for an infinite break-even.
CREATE MACRO scaled(e, k) AS struct_pack(mean := e.mean * k, lo := e.lo * k, hi := e.hi * k, n := e.n);
CREATE MACRO figure_text(x) AS CASE WHEN x IS NULL OR isnan(x) THEN 'not measured' WHEN isinf(x) THEN 'never' WHEN abs(x) >= 1000 THEN format('{:.0f}', x)
    WHEN abs(x) >= 100 THEN format('{:.1f}', x) WHEN abs(x) >= 10 THEN format('{:.2f}', x) ELSE format('{:.3f}', x) END;
CREATE MACRO estimate_text(e) AS CASE WHEN e.mean IS NULL THEN 'not measured' WHEN e.lo IS NULL OR e.lo = e.hi THEN figure_text(e.mean) || ' (n = ' || e.n || ')'
    ELSE figure_text(e.mean) || ' [' || figure_text(e.lo) || ', ' || figure_text(e.hi) || '] (n = ' || e.n || ')' END;
CREATE MACRO pct_text(ratio) AS format('{:+.1f}', round(100 * (ratio - 1), 1) + 0);
CREATE MACRO change_text(r) AS pct_text(r.mean) || '%' || CASE WHEN r.lo IS NULL THEN ' (n = ' || r.n || ')' ELSE ' [' || pct_text(r.lo) || ', ' || pct_text(r.hi) || '] (n = ' || r.n || ')' END;

-- the study's figures: one row a figure; text where it is no number
CREATE TABLE published AS
WITH leaves AS (SELECT string_split(replace(fullkey[3:], '"', ''), '.') AS key, atom ->> '$' AS text FROM json_tree(getvariable('published')::JSON) WHERE type NOT IN ('OBJECT', 'ARRAY'))
SELECT key[1] AS metric, key[2] AS model, key[3] AS profile, key[4] AS arm, TRY_CAST(text AS DOUBLE) AS value, text,
       getvariable('published')::JSON ->> ('$.' || key[1] || '.unit') AS unit, getvariable('published')::JSON ->> ('$.' || key[1] || '.place') AS place
FROM leaves WHERE len(key) = 4;
CREATE MACRO pub(the_metric, the_model, the_profile, of_arm) AS (SELECT any_value(value) FROM published WHERE (metric, model, profile, arm) = (the_metric, the_model, the_profile, of_arm));

-- KV blocks, of 16 tokens as by default, that the study's overload of the 32B implies: with graphs, and with the memory of its graphs given back.
CREATE VIEW published_pools AS
SELECT [floor(tokens / 16)::BIGINT, floor((tokens + pub('graph_gib', '32b', 'all', 'graphs') * 2 ** 30 / pub('kv_bytes_per_token', '32b', 'all', 'all')) / 16)::BIGINT] AS blocks
FROM (SELECT pub('load', 'all', 'sustained', 'concurrency') / pub('overload', '32b', 'sustained', 'all') * pub('load', 'all', 'all', 'max_model_len') AS tokens);

-- The scheduling model's prediction for a cell's load and any number of KV blocks of a size; filled by analysis/staircase.py. curve: not a measured arm's count.
CREATE TABLE model_steps (setup VARCHAR, model VARCHAR, profile VARCHAR, block_tokens BIGINT, kv_blocks BIGINT, curve BOOLEAN, steps BIGINT, mean_running DOUBLE, preempted BIGINT);

-- Its steps with the pool of graphs over those with eager's, by cell.
CREATE VIEW model_ratios AS
SELECT setup, model, profile, any_value(m.steps) FILTER (arm = 'graphs') / any_value(m.steps) FILTER (arm = 'eager') AS steps_ratio
FROM (SELECT DISTINCT setup, model, profile, arm, num_gpu_blocks AS kv_blocks, block_tokens(kv_block_tokens) AS block_tokens FROM runs WHERE counted AND kind = 'run') JOIN model_steps m USING (setup, model, profile, kv_blocks, block_tokens) GROUP BY ALL;

-- Spread of the runs of a cell, each arm against eager.
CREATE TABLE spreads AS
WITH s AS (
    SELECT setup, model, profile, metric, arm, count(*) AS n, min(value) AS lowest, median(value) AS middle, max(value) AS highest, 100 * stddev_samp(value) / abs(avg(value)) AS sd_pct
    FROM run_values WHERE profile <> '(all)' GROUP BY ALL
)
SELECT s.*, CASE WHEN s.arm = 'eager' THEN 'reference' WHEN e.n IS NULL THEN 'no eager' WHEN least(s.n, e.n) < 2 THEN 'one run'
            WHEN s.lowest > e.highest OR s.highest < e.lowest THEN 'apart' ELSE 'overlap' END AS overlap
FROM s LEFT JOIN s e ON (e.setup, e.model, e.profile, e.metric, e.arm) = (s.setup, s.model, s.profile, s.metric, 'eager');

-- Drift: slope over the runs of a cell and arm in the order in which they ran, in percent of their mean a run, with its 95% interval from three runs on.
CREATE TABLE drifts AS
WITH ordered AS (
    SELECT v.*, row_number() OVER (PARTITION BY v.setup, v.model, v.profile, v.arm, metric ORDER BY wall_start, folder)::DOUBLE AS turn
    FROM run_values v JOIN runs USING (setup, model, profile, arm, pair_id) WHERE counted AND runs.kind = 'run'
), fits AS (
    SELECT setup, model, profile, arm, metric, count(*) AS n, avg(value) AS mean, CASE WHEN count(*) > 1 THEN regr_slope(value, turn) END AS slope, list(value ORDER BY turn) AS points,
           sqrt(greatest(regr_syy(value, turn) - slope ^ 2 * regr_sxx(value, turn), 0) / nullif(n - 2, 0) / nullif(regr_sxx(value, turn), 0)) AS error
    FROM ordered GROUP BY ALL
)
SELECT fits.* EXCLUDE (slope, error, mean), struct_pack(mean := 100 * slope / mean, lo := 100 * (slope - t975 * error) / mean, hi := 100 * (slope + t975 * error) / mean, n := n) AS slope_pct
FROM fits LEFT JOIN student_t ON df = n - 2;

-- What an arm's longer start costs against eager, and what a request then saves: seconds, one row a pass of a block. A request's
-- time is the window over the number of requests, so at concurrency 1 its latency. A start with a cold cache is no part of it. calm_s, stricter_s, laxer_s: the saving without the host's stalls, computed by the three rules.
CREATE TABLE repayments AS
WITH r AS (SELECT folder, setup, model, profile, arm, pair_id, s.start_s, f.duration_s / num_prompts AS request_s, COLUMNS(['stalled_s', 'stricter_s', 'laxer_s']) / num_prompts FROM runs JOIN run_figures f USING (folder) LEFT JOIN stalls USING (folder) LEFT JOIN starts s USING (folder, setup, model, arm) WHERE s.warm)
SELECT a.setup, a.model, a.profile, a.arm, pair_id, a.start_s - e.start_s AS extra_s, e.request_s - a.request_s AS saving_s, saving_s - e.stalled_s + a.stalled_s AS calm_s, saving_s - e.stricter_s + a.stricter_s AS stricter_s, saving_s - e.laxer_s + a.laxer_s AS laxer_s
FROM r a JOIN r e USING (setup, model, profile, pair_id) WHERE e.arm = 'eager' AND a.arm <> 'eager';

-- Break-even in requests: extra start / saving a request, with Fieller's 95% interval over the passes. An end of `inf` is 'never'. calm_requests: with the saving
-- without the host's stalls; calm_range: least and greatest by all three rules.
CREATE MACRO repaid(extra_s, saving_s) AS CASE WHEN saving_s > 0 THEN greatest(extra_s / saving_s, 0) WHEN saving_s IS NOT NULL THEN 'inf'::DOUBLE END;
CREATE TABLE break_evens AS
WITH m AS (
    SELECT setup, model, profile, arm, count(*) AS n, mean95(extra_s) AS extra, mean95(saving_s) AS saving, avg(calm_s) AS calm_s, avg(stricter_s) AS stricter_s, avg(laxer_s) AS laxer_s,
           var_samp(extra_s) / n AS vx, var_samp(saving_s) / n AS vs, covar_samp(extra_s, saving_s) / n AS vc
    FROM repayments WHERE extra_s IS NOT NULL AND saving_s IS NOT NULL GROUP BY ALL
), q AS (
    SELECT m.*, saving.mean ^ 2 - t975 ^ 2 * vs AS a, extra.mean * saving.mean - t975 ^ 2 * vc AS b, extra.mean ^ 2 - t975 ^ 2 * vx AS c, sqrt(greatest(b * b - a * c, 0)) AS root
    FROM m LEFT JOIN student_t ON df = n - 1
)
SELECT setup, model, profile, arm, n, extra, saving, repaid(extra.mean, saving.mean) AS requests, repaid(extra.mean, calm_s) AS calm_requests,
       list_sort([calm_requests, repaid(extra.mean, stricter_s), repaid(extra.mean, laxer_s)]) AS calm_range,
       CASE WHEN n < 2 THEN NULL WHEN saving.hi < 0 THEN 'inf'::DOUBLE WHEN a > 0 OR c > 0 THEN greatest((b - root) / a, 0) ELSE 0 END AS fewest,
       CASE WHEN n < 2 THEN NULL WHEN a > 0 AND saving.mean > 0 THEN greatest((b + root) / a, 0) ELSE 'inf'::DOUBLE END AS most
FROM q;
CREATE MACRO requests_text(x) AS CASE WHEN x = 'inf'::DOUBLE THEN 'never' ELSE round(x)::BIGINT::VARCHAR END;

-- What the claims are written with; each looks at the setup named by the variable `setup`.
-- plain: a count, a maximum or a quotient of means over n runs or blocks, without interval. less, over (of what is positive) and
-- greatest_of: of figures each with its own interval, so the interval is at least as wide as 95% asks for.
CREATE MACRO plain(x, k) AS struct_pack(mean := x, lo := NULL::DOUBLE, hi := NULL::DOUBLE, n := k);
CREATE MACRO less(a, b) AS struct_pack(mean := a.mean - b.mean, lo := a.lo - b.hi, hi := a.hi - b.lo, n := least(a.n, b.n));
CREATE MACRO over(a, b) AS struct_pack(mean := a.mean / b.mean, lo := a.lo / b.hi, hi := CASE WHEN b.lo <= 0 THEN 'inf'::DOUBLE ELSE a.hi / b.lo END, n := least(a.n, b.n));
CREATE MACRO greatest_of(l) AS CASE WHEN len(list_filter(l, lambda e: e.mean IS NULL)) = 0 THEN struct_pack(mean := list_max(list_transform(l, lambda e: e.mean)),
    lo := list_max(list_transform(l, lambda e: e.lo)), hi := CASE WHEN len(list_filter(l, lambda e: e.hi IS NULL)) = 0 THEN list_max(list_transform(l, lambda e: e.hi)) END, n := list_min(list_transform(l, lambda e: e.n))) END;
CREATE MACRO estimate_of(the_metric, the_model, the_profile, of_arm) AS (SELECT any_value(estimate) FROM estimates WHERE (setup, metric, model, profile, arm) = (getvariable('setup'), the_metric, the_model, the_profile, of_arm));
CREATE MACRO ratio_of(the_metric, the_model, the_profile, of_arm := 'graphs', to_arm := 'eager') AS (SELECT any_value(ratio) FROM effects WHERE (setup, metric, model, profile, arm_a, arm_b) = (getvariable('setup'), the_metric, the_model, the_profile, of_arm, to_arm));
CREATE MACRO difference_of(the_metric, the_model, the_profile) AS (SELECT any_value(difference) FROM effects WHERE (setup, metric, model, profile, arm_a, arm_b) = (getvariable('setup'), the_metric, the_model, the_profile, 'graphs', 'eager'));
CREATE MACRO break_even_of(the_model, the_profile) AS (SELECT any_value(struct_pack(mean := requests, lo := fewest, hi := most, n := n)) FROM break_evens WHERE (setup, model, profile, arm) = (getvariable('setup'), the_model, the_profile, 'graphs'));
CREATE MACRO saving_of(the_model, the_profile) AS (SELECT any_value(saving) FROM break_evens WHERE (setup, model, profile, arm) = (getvariable('setup'), the_model, the_profile, 'graphs'));
CREATE MACRO graph_gib_of(the_model) AS (SELECT mean95(coalesce(graph_pool_actual_gib, capture_gib)) FROM runs WHERE counted AND kind = 'run' AND (setup, model, arm) = (getvariable('setup'), the_model, 'graphs') HAVING count(*) > 0);

CREATE TABLE claim_list AS
SELECT unnest(from_json(getvariable('claims')::JSON, '[{"id": "VARCHAR", "claim": "VARCHAR", "place": "VARCHAR", "sql": "VARCHAR", "published": "DOUBLE", "unit": "VARCHAR", "tolerance": "DOUBLE", "above": "DOUBLE", "below": "DOUBLE", "card": "VARCHAR", "weights": "VARCHAR", "min_n": "INTEGER", "of_pool": "BOOLEAN", "cells": ["VARCHAR"], "arms": ["VARCHAR"]}]'), recursive := true);

-- filled by analysis/claims.py: every claim's sql on every setup
CREATE TABLE claim_values (setup VARCHAR, id VARCHAR, measured STRUCT(mean DOUBLE, lo DOUBLE, hi DOUBLE, n BIGINT));

-- what the results folder declares of this data (expected-claims.toml)
CREATE TABLE expected_claims AS
SELECT unnest(from_json(json_extract(getvariable('expected')::JSON, key), '["VARCHAR"]')) AS id, replace(key, '_', ' ') AS verdict
FROM (VALUES ('reproduced'), ('not_reproduced'), ('not_testable')) AS v(key);

-- Verdict of every claim on every setup. caveat: what a reproduced one owes to the set-up; expected: what this data set declares of it, NULL if nothing; differs: it declares another verdict.
CREATE VIEW claims AS
WITH setups AS (SELECT setup, any_value(gpu_name) AS gpu_name, any_value(weights) AS has_weights, bool_or(simulated) AS simulated FROM runs WHERE counted AND kind = 'run' GROUP BY setup),
needed AS (SELECT id, coalesce(min_n, 3) AS needs_n, unnest(cells) AS cell, coalesce(arms, ['graphs', 'eager']) AS arms FROM claim_list),
missing AS (
    SELECT setup, id, any_value(needs_n) || ' runs with ' || max(without) || ' of ' || string_agg(cell || ' (there are ' || has || ')', ', ' ORDER BY cell) AS lacks
    FROM (
        SELECT s.setup, id, needed.cell, needs_n, min(coalesce(has, 0)) AS has, string_agg(need.arm, ' and ' ORDER BY need.arm DESC) AS without
        FROM setups s CROSS JOIN needed CROSS JOIN unnest(arms) AS need(arm)
        LEFT JOIN (SELECT setup, model || '.' || profile AS cell, arm, count(*) AS has FROM runs WHERE counted AND kind = 'run' GROUP BY ALL) c
               ON (c.setup, c.cell, c.arm) = (s.setup, needed.cell, need.arm)
        WHERE coalesce(has, 0) < needs_n GROUP BY ALL
    ) GROUP BY ALL
), judged AS (
    SELECT s.setup, c.id, c.claim, c.place, c.published, c.unit, c.of_pool, v.measured,
        CASE WHEN above IS NOT NULL THEN 'above ' || above WHEN below IS NOT NULL THEN 'below ' || below ELSE published || ' ± ' || tolerance END AS holds_if, c.sql,
        CASE WHEN simulated THEN 'the engine is simulated'
             WHEN NOT contains(coalesce(gpu_name, ''), coalesce(card, '')) THEN 'a figure of the card ' || card
             WHEN weights = 'trained' AND has_weights <> 'hub' THEN 'needs trained weights: with random ones energy is only a bound'
             WHEN lacks IS NOT NULL THEN 'needs ' || lacks
             WHEN measured.mean IS NULL THEN 'not measured'
             WHEN coalesce(above, below) IS NOT NULL AND measured.lo + measured.hi IS NULL THEN CASE measured.n WHEN 1 THEN 'n = 1 has no interval' ELSE 'no interval' END
             WHEN coalesce(above, below) > measured.lo AND coalesce(above, below) < measured.hi THEN 'the interval includes ' || coalesce(above, below) END AS reason,
        CASE WHEN above IS NOT NULL THEN measured.lo >= above WHEN below IS NOT NULL THEN measured.hi <= below ELSE abs(measured.mean - published) <= tolerance END AS holds
    FROM setups s CROSS JOIN claim_list c JOIN claim_values v USING (setup, id) LEFT JOIN missing USING (setup, id)
)
SELECT setup, id, claim, place, published, unit, holds_if, measured, judged_verdict AS verdict, coalesce(reason, '') AS reason,
       CASE WHEN of_pool AND judged_verdict = 'reproduced' THEN (SELECT 'near circular: the memory budget of ' || study_budget_gib || ' GiB was set so that the KV pool equals that of the study''s 80 GB card' FROM summary) END AS caveat,
       e.verdict AS expected, e.verdict IS NOT NULL AND e.verdict <> judged_verdict AS differs, sql
FROM (SELECT *, CASE WHEN reason IS NOT NULL THEN 'not testable' WHEN holds THEN 'reproduced' ELSE 'not reproduced' END AS judged_verdict FROM judged)
LEFT JOIN expected_claims e USING (id);
