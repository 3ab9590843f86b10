-- title: Graphs over eager by queue overload; hollow: the study, as published and recomputed; dashed: a full pool
-- kind: scatter
-- x: overload of the arm graphs
-- y: ratio of output tokens/s
-- x_axis: root
-- y_axis: log
WITH cells AS (
    SELECT f.setup, f.model || ' ' || f.profile AS label, (SELECT avg(concurrency / max_concurrency) FROM runs r WHERE r.counted AND (r.setup, r.model, r.profile, r.arm) = (f.setup, f.model, f.profile, 'graphs')) AS x, f.ratio
    FROM effects f WHERE metric = 'output_tok_s' AND arm_a = 'graphs' AND arm_b = 'eager' AND ratio IS NOT NULL
), study AS (
    SELECT basis || o.model || ' ' || o.profile AS label, round(o.value * share, 3) AS x, 1 + t.value / 100 AS y
    FROM published o JOIN published t ON (t.metric, t.model, t.profile, t.arm) = ('throughput', o.model, o.profile, 'change_pct'),
         (VALUES ('published ', 1), ('recomputed ', pub('load', 'all', 'all', 'max_model_len') / pub('load', 'all', 'all', 'default_model_len'))) AS b(basis, share)
    WHERE o.metric = 'overload' AND o.arm = 'all' AND (share = 1 OR o.model = '7b' AND o.value > 0)
)
SELECT setup, NULL AS model, NULL AS profile, label, round(x, 3), round(ratio.mean, 3), ratio.lo, ratio.hi, ratio.n, FALSE AS hollow FROM cells WHERE x IS NOT NULL
UNION ALL SELECT DISTINCT setup, NULL, NULL, study.label, study.x, round(study.y, 3), NULL, NULL, NULL, TRUE FROM cells, study
ORDER BY setup, label, 5;
