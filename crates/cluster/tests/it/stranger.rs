//! A TLS client of another make than ours.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tandem_cluster::Identity;
use tokio::net::TcpStream;

/// Its connection.
pub type Stranger = tokio_rustls::client::TlsStream<TcpStream>;

/// A TLS client of another make: it trusts everyone, and shows this certificate or none.
pub async fn anyone(tcp: TcpStream, own: Option<&Identity>) -> std::io::Result<Stranger> {
    anyone_with(aws_lc_rs::default_provider(), tcp, own).await
}

/// The same, which encrypts with this.
pub async fn anyone_with(
    provider: CryptoProvider,
    tcp: TcpStream,
    own: Option<&Identity>,
) -> std::io::Result<Stranger> {
    use rustls::pki_types::pem::PemObject;
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TrustsEveryone));
    let config = match own {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let chain = CertificateDer::from_pem_slice(identity.certificate_pem().as_bytes());
            let key =
                rustls::pki_types::PrivateKeyDer::from_pem_slice(identity.key_pem().as_bytes());
            builder
                .with_client_auth_cert(vec![chain.unwrap()], key.unwrap())
                .unwrap()
        }
    };
    let name = ServerName::try_from("anything.example").unwrap();
    tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(name, tcp)
        .await
}

#[derive(Debug)]
struct TrustsEveryone;

impl rustls::client::danger::ServerCertVerifier for TrustsEveryone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        vec![rustls::SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}
