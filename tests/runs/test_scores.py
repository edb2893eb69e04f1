import math

import numpy as np
import pytest

from amber_trl.runs import final_score, speed_score


def test_final_is_the_mean_of_the_last_hundred() -> None:
    returns = [1e6] * 5 + list(range(100))
    assert final_score(range(105), returns) == 49.5


def test_final_of_few_or_no_episodes() -> None:
    assert final_score([1, 2], [2.0, 4.0]) == 3.0
    assert math.isnan(final_score([], []))


def test_speed_by_hand() -> None:
    # Points 10, 20, 30, 40; nothing has finished by 10, so it is left out.
    # By 20: (1) -> 1. By 30: (1, 3, 5) -> 3. By 40: the same -> 3.
    assert speed_score([20, 21, 30], [1.0, 3.0, 5.0], 10, 40) == pytest.approx(7 / 3)


def test_speed_weighs_frames_not_episodes() -> None:
    # One long good episode counts as much time as many short bad ones.
    frames = [*range(1, 101), 200]
    returns = [0.0] * 100 + [100.0]
    # At 100: mean of hundred zeros. At 200: 99 zeros and one 100 -> 1.
    assert speed_score(frames, returns, 100, 200) == 0.5


def test_speed_window_slides_over_a_hundred() -> None:
    frames, returns = np.arange(1, 301), np.arange(300.0)
    # At 150: returns 50..149 -> 99.5. At 300: returns 200..299 -> 249.5.
    assert speed_score(frames, returns, 150, 300) == pytest.approx((99.5 + 249.5) / 2)


def test_speed_ends_at_the_total_and_counts_the_last_point() -> None:
    assert speed_score([10, 20, 30], [1.0, 2.0, 100.0], 10, 20) == pytest.approx((1.0 + 1.5) / 2)
    assert speed_score([10], [4.0], 10, 10) == 4.0
    assert math.isnan(speed_score([10], [4.0], 10, 9))
    assert math.isnan(speed_score([], [], 10, 100))


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="every=0"):
        speed_score([1], [1.0], 0, 10)
    with pytest.raises(ValueError, match="total_frames=-1"):
        speed_score([1], [1.0], 1, -1)
    with pytest.raises(ValueError, match=r"shape \[2\] and returns of shape \[1\]"):
        final_score([1, 2], [1.0])
    with pytest.raises(ValueError, match="decreases from 3 to 2 at episode 2"):
        final_score([1, 3, 2], [1.0, 1.0, 1.0])
