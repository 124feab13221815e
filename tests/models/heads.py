"""Slow twins of the newer aggregations: plain loops over lists, written from the papers.

Each takes the parameters by their published names, the map of one image as a list of locations (row by row, each a list
of channels) and the class token.
"""

from __future__ import annotations

import math

from torch import Tensor

Vector = list[float]
Parameters = dict[str, Tensor]


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def unit(vector: Vector) -> Vector:
    length = max(math.sqrt(dot(vector, vector)), 1e-12)
    return [v / length for v in vector]


def linear(p: Parameters, name: str, x: Vector) -> Vector:
    weight = p[f"{name}.weight"].flatten(1).tolist()
    return [dot(row, x) + b for row, b in zip(weight, p[f"{name}.bias"].tolist(), strict=True)]


def relu(x: Vector) -> Vector:
    return [max(0.0, v) for v in x]


def norm(p: Parameters, name: str, x: Vector) -> Vector:
    mean = sum(x) / len(x)
    variance = sum((v - mean) ** 2 for v in x) / len(x)
    weight, bias = p[f"{name}.weight"].tolist(), p[f"{name}.bias"].tolist()
    return [(v - mean) / math.sqrt(variance + 1e-5) * w + b for v, w, b in zip(x, weight, bias, strict=True)]


def plus(a: Vector, b: Vector) -> Vector:
    return [x + y for x, y in zip(a, b, strict=True)]


def salad(p: Parameters, locations: list[Vector], token: Vector) -> Vector:
    """Sinkhorn with products, not logarithms: rows and columns are scaled in turn, three times."""
    local = [linear(p, "cluster_features.3", relu(linear(p, "cluster_features.0", x))) for x in locations]
    scores = [[*linear(p, "score.3", relu(linear(p, "score.0", x))), p["dust_bin"].item()] for x in locations]
    clusters = len(scores[0]) - 1
    target = [1.0] * clusters + [float(len(locations) - clusters)]
    kernel = [[math.exp(s) for s in row] for row in scores]  # location x cluster
    of_cluster, of_location = [1.0] * (clusters + 1), [1.0] * len(locations)
    for _ in range(3):
        for k in range(clusters + 1):
            of_cluster[k] = target[k] / sum(kernel[s][k] * of_location[s] for s in range(len(locations)))
        for s in range(len(locations)):
            of_location[s] = 1 / sum(kernel[s][k] * of_cluster[k] for k in range(clusters + 1))
    sums = [[0.0] * clusters for _ in local[0]]
    for s, vector in enumerate(local):
        for k in range(clusters):
            for c, v in enumerate(vector):
                sums[c][k] += kernel[s][k] * of_cluster[k] * of_location[s] * v
    columns = [unit([row[k] for row in sums]) for k in range(clusters)]
    joined = [columns[k][c] for c in range(len(sums)) for k in range(clusters)]
    return unit(unit(linear(p, "token_features.2", relu(linear(p, "token_features.0", token)))) + joined)


def megaloc(p: Parameters, locations: list[Vector], token: Vector) -> Vector:
    return unit(linear(p, "linear", salad(p, locations, token)))


def class_token(p: Parameters, locations: list[Vector], token: Vector) -> Vector:
    return unit(token)


def cosplace(p: Parameters, locations: list[Vector], token: Vector) -> Vector:
    units, power = [unit(x) for x in locations], p["gem.p"].item()
    means = [sum(max(x[c], 1e-6) ** power for x in units) / len(units) for c in range(len(units[0]))]
    return unit(linear(p, "linear", [m ** (1 / power) for m in means]))


def vlad(p: Parameters, locations: list[Vector], token: Vector) -> Vector:
    centres = p["centres"].tolist()
    sums = [[0.0] * len(c) for c in centres]
    for x in map(unit, locations):
        similar = [dot(x, unit(c)) for c in centres]
        k = similar.index(max(similar))
        sums[k] = [total + a - b for total, a, b in zip(sums[k], x, centres[k], strict=True)]
    return unit([v for cluster in sums for v in unit(cluster)])


def mixvpr(p: Parameters, locations: list[Vector], token: Vector) -> Vector:
    rows = [list(channel) for channel in zip(*locations, strict=True)]  # channel x location
    depth = 1 + max(int(name.split(".")[1]) for name in p if name.startswith("mix."))
    for i in range(depth):
        at = f"mix.{i}.mix"
        rows = [plus(x, linear(p, f"{at}.3", relu(linear(p, f"{at}.1", norm(p, f"{at}.0", x))))) for x in rows]
    columns = [linear(p, "channel_proj", list(location)) for location in zip(*rows, strict=True)]
    return unit([v for channel in zip(*columns, strict=True) for v in linear(p, "row_proj", list(channel))])


def attend(p: Parameters, name: str, queries: list[Vector], x: list[Vector], heads: int) -> list[Vector]:
    width = len(x[0])
    weight, bias = p[f"{name}.in_proj_weight"].tolist(), p[f"{name}.in_proj_bias"].tolist()

    def project(vectors: list[Vector], part: int) -> list[Vector]:
        rows = range(part * width, (part + 1) * width)
        return [[dot(weight[r], v) + bias[r] for r in rows] for v in vectors]

    q, k, v = project(queries, 0), project(x, 1), project(x, 2)
    size, found = width // heads, []
    for query in q:
        joined: Vector = []
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            weights = [math.exp(dot(query[part], key[part]) / math.sqrt(size)) for key in k]
            total = sum(weights)
            joined += [
                sum(w * value[part][c] for w, value in zip(weights, v, strict=True)) / total for c in range(size)
            ]
        found.append(linear(p, f"{name}.out_proj", joined))
    return found


def boq(p: Parameters, locations: list[Vector], token: Vector, width: int, heads: int) -> Vector:
    """`width`: of the map."""
    height = len(locations) // width
    kernel, bias = p["proj_c.weight"].tolist(), p["proj_c.bias"].tolist()
    x = []
    for y0 in range(height):
        for x0 in range(width):
            vector = list(bias)
            for o, filters in enumerate(kernel):
                for c, rows in enumerate(filters):
                    for dy in (-1, 0, 1):
                        for dx in (-1, 0, 1):
                            if 0 <= y0 + dy < height and 0 <= x0 + dx < width:
                                vector[o] += rows[dy + 1][dx + 1] * locations[(y0 + dy) * width + x0 + dx][c]
            x.append(norm(p, "norm_input", vector))
    answers: list[Vector] = []
    depth = 1 + max(int(name.split(".")[1]) for name in p if name.startswith("boqs."))
    for i in range(depth):
        at = f"boqs.{i}"
        mixed = attend(p, f"{at}.encoder.self_attn", x, x, heads)
        x = [norm(p, f"{at}.encoder.norm1", plus(a, b)) for a, b in zip(x, mixed, strict=True)]
        inner = [linear(p, f"{at}.encoder.linear2", relu(linear(p, f"{at}.encoder.linear1", v))) for v in x]
        x = [norm(p, f"{at}.encoder.norm2", plus(a, b)) for a, b in zip(x, inner, strict=True)]
        queries = p[f"{at}.queries"][0].tolist()
        seen = attend(p, f"{at}.self_attn", queries, queries, heads)
        queries = [norm(p, f"{at}.norm_q", plus(a, b)) for a, b in zip(queries, seen, strict=True)]
        answers += [norm(p, f"{at}.norm_out", v) for v in attend(p, f"{at}.cross_attn", queries, x, heads)]
    return unit([v for channel in zip(*answers, strict=True) for v in linear(p, "fc", list(channel))])
