//! What a failed handshake means, and the fix.

use std::error::Error;

use rustls::{AlertDescription, CertificateError, Error as TlsError};

const OTHER_CLUSTER: &str = "its certificate is of another cluster: let one of the two machines join the other's \
     (`tandem cluster invite` there, `tandem cluster join` here, with an empty directory)";
const EXPIRED: &str = "its certificate has expired: `tandem cluster invite` on the machine that made the cluster and \
     `tandem cluster join` there give it a new one";
const NOT_YET: &str = "its certificate is not valid yet: set the clocks of both machines";
const NOT_A_NODE: &str = "its certificate is not one of a machine of a cluster";
const NO_CERTIFICATE: &str = "it shows no certificate: it must join this cluster first (`tandem cluster invite`, \
     `tandem cluster join`)";
const NO_TLS: &str =
    "it does not speak TLS: start it without --plaintext, and with the same version of tandem";
const REFUSED: &str = "it refused this machine's certificate, which is of another cluster or has expired: \
     `tandem cluster show` on both machines prints what they have";

/// The reason and the fix in the words of tandem, if the error or one of its causes is a failure of
/// TLS. Reads as the end of a sentence that begins with the other side.
#[must_use]
pub fn explain(error: &(dyn Error + 'static)) -> Option<String> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(tls) = error.downcast_ref::<TlsError>() {
            return Some(of_tls(tls));
        }
        if let Some(io) = error.downcast_ref::<std::io::Error>()
            && let Some(inner) = io.get_ref()
            && let Some(text) = explain(inner)
        {
            return Some(text);
        }
        cause = error.source();
    }
    None
}

fn of_tls(error: &TlsError) -> String {
    match error {
        TlsError::InvalidCertificate(reason) => of_certificate(reason),
        TlsError::NoCertificatesPresented => NO_CERTIFICATE.to_owned(),
        TlsError::InvalidMessage(_) => NO_TLS.to_owned(),
        TlsError::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::CertificateRequired
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::DecryptError
            | AlertDescription::AccessDenied,
        ) => REFUSED.to_owned(),
        other => format!("TLS failed: {other}"),
    }
}

fn of_certificate(reason: &CertificateError) -> String {
    match reason {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => OTHER_CLUSTER,
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => EXPIRED,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => NOT_YET,
        CertificateError::NotValidForName
        | CertificateError::NotValidForNameContext { .. }
        | CertificateError::InvalidPurpose
        | CertificateError::InvalidPurposeContext { .. } => NOT_A_NODE,
        other => return format!("its certificate is not valid: {other}"),
    }
    .to_owned()
}
