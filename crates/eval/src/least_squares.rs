//! Robust least squares with Gaussian priors on the logarithms of positive coefficients:
//! Levenberg-Marquardt with a numeric Jacobian and soft-L1 loss by reweighting (Nocedal & Wright,
//! ch. 10; Triggs et al. 1999). Small and dense: about ten coefficients.

/// The prior of one coefficient: its centre, and the standard deviation of its logarithm.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prior {
    pub(crate) centre: f64,
    pub(crate) sigma: f64,
}

/// The result of a fit.
#[derive(Debug, Clone)]
pub(crate) struct Fitted<const N: usize> {
    /// Logarithms of the coefficients.
    pub(crate) theta: [f64; N],
    /// Their covariance.
    pub(crate) covariance: [[f64; N]; N],
}

const ITERATIONS: usize = 200;
const SLOPE_STEP: f64 = 1e-5;
const DAMPING_START: f64 = 1e-3;
const DAMPING_LEAST: f64 = 1e-9;
const SETTLED: f64 = 1e-7;

/// Minimises `Σ 2(√(1+x²) − 1) + Σ((θ − c)/σ)²`, where `x` are the residuals in units of the
/// outlier scale.
pub(crate) fn fit<const N: usize>(
    priors: &[Prior; N],
    residuals: impl Fn(&[f64; N]) -> Vec<f64>,
) -> Fitted<N> {
    let centre = priors.map(|prior| prior.centre.ln());
    let precision = priors.map(|prior| 1.0 / (prior.sigma * prior.sigma));
    let pull = |theta: &[f64; N]| {
        let parts = theta.iter().zip(&centre).zip(&precision);
        parts
            .map(|((value, centre), precision)| (value - centre).powi(2) * precision)
            .sum::<f64>()
    };
    let cost = |theta: &[f64; N], residuals: &[f64]| {
        residuals
            .iter()
            .map(|x| 2.0 * ((1.0 + x * x).sqrt() - 1.0))
            .sum::<f64>()
            + pull(theta)
    };
    let mut theta = centre;
    let mut here = residuals(&theta);
    let mut lowest = cost(&theta, &here);
    let mut damping = DAMPING_START;
    for _ in 0..ITERATIONS {
        let (curvature, slope) = normal_equations(&theta, &here, &residuals, &centre, &precision);
        let mut moved = f64::INFINITY;
        for _ in 0..30 {
            let mut damped = curvature;
            for (index, row) in damped.iter_mut().enumerate() {
                row[index] *= 1.0 + damping;
            }
            let step = solve(damped, slope.map(|value| -value));
            let tried = add(&theta, &step);
            let there = residuals(&tried);
            let found = cost(&tried, &there);
            if found.is_finite() && found <= lowest {
                moved = step
                    .iter()
                    .fold(0.0, |most: f64, part| most.max(part.abs()));
                (theta, here, lowest) = (tried, there, found);
                damping = (damping / 5.0).max(DAMPING_LEAST);
                break;
            }
            damping *= 4.0;
        }
        if moved.is_infinite() || moved < SETTLED {
            break;
        }
    }
    let (curvature, _) = normal_equations(&theta, &here, &residuals, &centre, &precision);
    Fitted {
        theta,
        covariance: inverse(curvature),
    }
}

fn add<const N: usize>(left: &[f64; N], right: &[f64; N]) -> [f64; N] {
    let mut sum = *left;
    sum.iter_mut()
        .zip(right)
        .for_each(|(value, step)| *value += step);
    sum
}

/// `JᵀWJ + Σ⁻¹` and the gradient, with the soft-L1 weights.
fn normal_equations<const N: usize>(
    theta: &[f64; N],
    here: &[f64],
    residuals: &impl Fn(&[f64; N]) -> Vec<f64>,
    centre: &[f64; N],
    precision: &[f64; N],
) -> ([[f64; N]; N], [f64; N]) {
    let mut columns: Vec<Vec<f64>> = Vec::with_capacity(N);
    for index in 0..N {
        let at = |by: f64| {
            let mut moved = *theta;
            moved[index] += by;
            residuals(&moved)
        };
        let (above, below) = (at(SLOPE_STEP), at(-SLOPE_STEP));
        columns.push(
            above
                .iter()
                .zip(&below)
                .map(|(up, down)| (up - down) / (2.0 * SLOPE_STEP))
                .collect(),
        );
    }
    let weights: Vec<f64> = here.iter().map(|x| 1.0 / (1.0 + x * x).sqrt()).collect();
    let weighted = |left: &[f64], right: &[f64]| -> f64 {
        left.iter()
            .zip(right)
            .zip(&weights)
            .map(|((a, b), weight)| a * b * weight)
            .sum()
    };
    let mut curvature = [[0.0; N]; N];
    let mut slope = [0.0; N];
    for i in 0..N {
        for j in 0..N {
            curvature[i][j] = weighted(&columns[i], &columns[j]);
        }
        curvature[i][i] += precision[i];
        slope[i] = weighted(&columns[i], here) + (theta[i] - centre[i]) * precision[i];
    }
    (curvature, slope)
}

/// Gaussian elimination with partial pivoting.
#[expect(
    clippy::needless_range_loop,
    reason = "two rows of one matrix are read and written at once"
)]
fn solve<const N: usize>(mut matrix: [[f64; N]; N], mut right: [f64; N]) -> [f64; N] {
    for column in 0..N {
        let pivot = (column..N).max_by(|a, b| {
            matrix[*a][column]
                .abs()
                .total_cmp(&matrix[*b][column].abs())
        });
        let pivot = pivot.unwrap_or(column);
        matrix.swap(column, pivot);
        right.swap(column, pivot);
        for row in column + 1..N {
            let factor = matrix[row][column] / matrix[column][column];
            for k in column..N {
                matrix[row][k] -= factor * matrix[column][k];
            }
            right[row] -= factor * right[column];
        }
    }
    let mut solution = [0.0; N];
    for row in (0..N).rev() {
        let known: f64 = (row + 1..N).map(|k| matrix[row][k] * solution[k]).sum();
        solution[row] = (right[row] - known) / matrix[row][row];
    }
    solution
}

pub(crate) fn inverse<const N: usize>(matrix: [[f64; N]; N]) -> [[f64; N]; N] {
    let mut columns = [[0.0; N]; N];
    for (index, column) in columns.iter_mut().enumerate() {
        let mut unit = [0.0; N];
        unit[index] = 1.0;
        *column = solve(matrix, unit);
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `y = a·x^b` with one outlier, which hardly moves the fit.
    #[test]
    fn a_power_law_is_found_in_spite_of_an_outlier() {
        let points: Vec<(f64, f64)> = (1..=20)
            .map(|x| (f64::from(x), 3.0 * f64::from(x).powf(0.5)))
            .collect();
        let residuals = |theta: &[f64; 2]| {
            let [a, b] = theta.map(f64::exp);
            let of = |(x, y): &(f64, f64)| (a * x.powf(b) / y).ln() / 0.01;
            points.iter().map(of).chain([of(&(5.0, 30.0))]).collect()
        };
        let wide = Prior {
            centre: 1.0,
            sigma: 3.0,
        };
        let found = fit(&[wide, wide], residuals);
        let [a, b] = found.theta.map(f64::exp);
        assert!((a - 3.0).abs() < 0.02 && (b - 0.5).abs() < 0.01, "{a} {b}");
        assert!(
            found.covariance[0][0] > 0.0
                && (found.covariance[0][1] - found.covariance[1][0]).abs() < 1e-9
        );
    }
}
